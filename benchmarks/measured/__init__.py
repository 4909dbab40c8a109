"""Compute the numbers of the documentation from the files of benchmarks/results.

Templates name the functions that return text (`text.py`):
`{{returns.mean learning_sac_Pendulum-v1}}`.
"""
