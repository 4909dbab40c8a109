"""Small plans, and what two trees have in common."""

import jax
import numpy as np

from tests.envs.walking_native import SPEC, place
from understudy.algorithms.td3 import TD3
from understudy.qd.config import MAPElitesConfig, PGAMEConfig
from understudy.qd.map_elites import Plan

SIZE = 8
SHARED = dict(generation_size=SIZE, grid=(5, 5), hidden_sizes=(8,), iso_sigma=0.1, line_sigma=0.2)
GUIDED = dict(critic_steps=4, policy_steps=5, critic_hidden_sizes=(8,), batch_size=16,
              buffer_size=800)  # fmt: skip


def config(guided, **settings):
    if guided:
        return PGAMEConfig(**(SHARED | GUIDED | settings))
    return MAPElitesConfig(**(SHARED | settings))


def plan(guided=True, spec=SPEC, descriptor=None, seed=0, **settings):
    chosen = config(guided, **settings)
    return Plan(TD3(chosen.td3()), spec, descriptor or place(), chosen, seed)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def flat(policies):
    """[policies, weights]"""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(policies)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
