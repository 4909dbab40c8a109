"""However an episode ends, what follows it counts with exactly the right discount."""

from collections import defaultdict
from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faults.fault_env import FaultEnv
from understudy.buffers import ReplayBuffer, RolloutBuffer
from understudy.envs import EpisodeSeeds, SerialEnvs
from understudy.ops.returns import gae
from understudy.types import ArraySpec, Chunk, Continuous, Spec, Step

SPEC = Spec(ArraySpec((1,)), Continuous((-1.0,), (1.0,), (1,)))
GAMMA = 0.5
ONE = np.float32(1.0)
HYPER = {"gamma": np.float32(GAMMA), "reward_scale": ONE}


class Ends(gymnasium.Env):
    """Episode 0 terminates and is truncated at once, 1 is truncated, 2 terminates, each at its
    first step; 3 is truncated after two. Step k of all gives 2^k and shows k."""

    observation_space = gymnasium.spaces.Box(-9, 99, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    script = ((1, True, True), (1, False, True), (1, True, False), (2, False, True))

    def __init__(self):
        self.episode, self.time, self.count = -1, 0, 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.time = self.episode + 1, 0
        return np.float32([-1]), {}

    def step(self, action):
        length, terminated, truncated = self.script[self.episode]
        self.time, self.count = self.time + 1, self.count + 1
        over = self.time == length
        reward = float(2 ** (self.count - 1))
        return np.float32([self.count]), reward, over and terminated, over and truncated, {}


def transitions(envs, count):
    """Chunks of one step, as a collector makes them."""
    observation = envs.reset()
    for _ in range(count):
        action = np.zeros((envs.num_envs, envs.spec.action.size), np.float32)
        step = envs.step(action)
        facts = (observation, action, step.reward, step.terminated, step.last)
        step_rows = Step(*map(np.array, (*facts, step.next_observation)))
        yield Chunk.of_one_step(step_rows, np.array(step.valid))
        observation = step.observation


def sampled(buffer, store):
    """next observation → all pairs (reward, discount) that lead to it, of everything in replay."""
    batch, _ = jax.jit(buffer.sample)(store, jax.random.PRNGKey(0), HYPER)
    facts = zip(batch.reward.tolist(), batch.discount.tolist(), strict=True)
    found = defaultdict(set)
    for seen, pair in zip(batch.next_observation.tolist(), facts, strict=True):
        found[tuple(seen)].add(pair)
    return dict(found)


def collected(steps, horizon):
    buffer = RolloutBuffer(SPEC, horizon, 1)
    store, add = buffer.init(), jax.jit(buffer.add)
    for chunk in steps:
        store = add(store, chunk)
    return jax.jit(buffer.sample)(store, jax.random.PRNGKey(0), HYPER)[0]


@pytest.mark.fault(
    12, "terminated, truncated, both, at the first step: the exact discount (replay)"
)
@pytest.mark.parametrize("n_step", [1, 3])
def test_discounts_from_replay(n_step):
    buffer = ReplayBuffer(SPEC, 8, 1, 256, n_step)
    store, add = buffer.init(), jax.jit(buffer.add)
    for chunk in transitions(SerialEnvs([Ends], EpisodeSeeds(0)), 5):
        store = add(store, chunk)
    # Terminated and truncated at once is terminated; only truncated bootstraps from its own next
    # observation.
    want = {(1.0,): {(1.0, 0.0)}, (2.0,): {(2.0, GAMMA)}, (3.0,): {(4.0, 0.0)}}
    if n_step == 1:
        want |= {(4.0,): {(8.0, GAMMA)}, (5.0,): {(16.0, GAMMA)}}
    else:
        want |= {(5.0,): {(8 + GAMMA * 16, GAMMA**2), (16.0, GAMMA)}}
    assert sampled(buffer, store) == want


@pytest.mark.fault(12, "the same for a rollout with resets inside")
def test_discounts_from_a_rollout():
    seen = transitions(SerialEnvs([Ends], EpisodeSeeds(0)), 5)
    steps = jax.device_get(collected(seen, horizon=5))
    assert steps.discount[:, 0].tolist() == [0.0, GAMMA, 0.0, GAMMA, GAMMA]
    assert steps.last[:, 0].tolist() == [True, True, True, False, True]
    assert steps.next_observation[:, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert steps.observation[:, 0, 0].tolist() == [-1, -1, -1, -1, 4]


CUT_SEEDS = EpisodeSeeds(4)
CUT_PLAN = {CUT_SEEDS(0, 0): (3, "raise")}  # two good steps, then the environment falls over


@pytest.mark.fault(1, "n-step sums stop at the last valid step of the cut episode")
def test_a_cut_episode_is_not_bridged_in_replay():
    envs = SerialEnvs([partial(FaultEnv, 0, CUT_PLAN, [])], CUT_SEEDS)
    spec, (first, second) = envs.spec, (CUT_SEEDS(0, number) % 997 for number in (0, 1))
    buffer = ReplayBuffer(spec, 8, 1, 256, n_step=3)
    store, add = buffer.init(), jax.jit(buffer.add)
    for chunk in transitions(envs, 5):
        store = add(store, chunk)
    envs.close()
    # Each step gives −1; there are two good ones of each episode, before and after the cut.
    both = {(-1 - GAMMA, GAMMA**2), (-1.0, GAMMA)}
    assert sampled(buffer, store) == {(0, first, 2, 0): both, (0, second, 2, 0): both}
    assert store.storage.last[0, :4].tolist() == [False, True, False, False]
    assert int(buffer.num_stored(store)) == 4


@pytest.mark.fault(1, "advantages do not cross the cut in a rollout")
def test_a_cut_episode_is_not_bridged_in_a_rollout():
    row, no = np.zeros((1, 1), np.float32), np.array([False])
    rows = [
        Chunk.of_one_step(
            Step(row, row, np.float32([reward]), no, np.array([last]), row), np.array([valid])
        )
        for reward, last, valid in [
            (1.0, False, True),
            (2.0, False, True),
            (99.0, True, False),
            (4.0, False, True),
        ]
    ]
    told = jax.device_get(collected(rows, horizon=4))
    assert told.last[:, 0].tolist() == [False, True, True, False]
    assert told.valid[:, 0].tolist() == [True, True, False, True]
    zero = jnp.zeros((4, 1))
    steps = told.reward, told.discount, told.last
    advantage = np.asarray(jax.jit(gae)(*steps, zero, zero, np.float32(GAMMA)))
    assert advantage[:2, 0].tolist() == [1 + GAMMA * 2, 2.0]
