"""Compute the numbers of the documentation from the files of benchmarks/results.

Each public function of a module returns text for a page. Templates name the functions
(`text.py`): `{{returns.mean learning_sac_Pendulum-v1}}`.
"""
