"""The divisor of rewards: the deviation of discounted returns, or what keeps returns in a limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.algorithm_cases import SPEC, make_batch
from understudy.algorithms.a2c import A2CConfig
from understudy.algorithms.normalization import (
    init_normalizer,
    normalize_batch,
    update_normalizer,
)
from understudy.algorithms.sac import SAC, SACConfig
from understudy.state_dict import state_dict
from understudy.training.initialization import init_learner
from understudy.training.learner import observe
from understudy.types import Chunk, Step


def rewards_after(returns, valid=None, **settings):
    """Rewards of 1, normalized after these discounted returns."""
    normalizer = init_normalizer(SACConfig(normalize_rewards=True, **settings), SPEC)
    valid = jnp.ones(len(returns), bool) if valid is None else jnp.array(valid)
    rows = jnp.zeros((len(returns), 3))
    normalizer = update_normalizer(normalizer, rows, jnp.array(returns), valid)
    batch = make_batch()._replace(reward=jnp.ones(8))
    return float(normalize_batch(normalizer, batch).reward[0])


@pytest.mark.parametrize(
    ("returns", "limit", "divisor"),
    [
        ([1.0, 3.0], None, 1.0),  # σ = 1
        ([1.0, 3.0], 5.0, 1.0),  # 3/5 is less than σ
        ([1.0, 3.0], 2.0, 1.5),  # 3/2 is more
        ([9.0, 11.0], 5.0, 2.2),  # returns that hardly vary: 11/5
        ([-11.0, -9.0], 5.0, 2.2),  # of absolute values
    ],
)
def test_the_divisor_is_the_larger_one(returns, limit, divisor):
    settings = {} if limit is None else {"return_limit": limit}
    assert rewards_after(returns, **settings) == pytest.approx(1 / divisor, rel=1e-5)


def test_a_row_that_is_no_step_counts_nowhere():
    returns, valid = [9.0, 11.0, np.nan, 1e9], [True, True, False, False]
    assert rewards_after(returns, valid, return_limit=5.0) == pytest.approx(1 / 2.2, rel=1e-5)


@pytest.mark.parametrize("config", [SACConfig, A2CConfig])
def test_without_a_limit_the_statistics_are_what_they_were(config):
    names = state_dict(init_normalizer(config(normalize_rewards=True), SPEC))
    assert not [name for name in names if "bound" in name]
    limited = config(normalize_rewards=True, return_limit=5.0)
    added = set(state_dict(init_normalizer(limited, SPEC))) - set(names)
    assert added == {"bound.largest", "bound.limit"}


def test_the_largest_return_is_that_of_any_open_episode_so_far():
    """Two environments, γ = ½, rewards 1, 2 and 4. The first one's episode ends after two steps:
    its returns are 1, 2.5 and 4; the second one's are 1, 2.5 and 5.25, with the sign turned."""
    algorithm = SAC(SACConfig(gamma=0.5, normalize_rewards=True, return_limit=5.0))
    learner = jax.jit(lambda key: init_learner(algorithm, SPEC, 2, key))(jax.random.PRNGKey(0))
    reward = jnp.array([[1.0, -1.0], [2.0, -2.0], [4.0, -4.0]])
    last = jnp.array([[False, False], [True, False], [False, False]])
    rows = jnp.zeros((3, 2, 3))
    steps = Step(rows, rows[..., :2], reward, last, last, rows)
    see, largest = jax.jit(observe), []
    for end in (1, 2, 3):
        chunk = Chunk(jax.tree.map(lambda x, end=end: x[:end], steps), jnp.ones((end, 2), bool))
        largest.append(float(see(learner, chunk).state.normalizer.bound.largest))
    np.testing.assert_allclose(largest, [1.0, 2.5, 5.25])
