"""Memory in training is the memory of acting: recomputed from what replay and rollouts keep, with
the parameters unchanged, it equals what was recorded step by step, resets included."""

import dataclasses
from functools import cache, partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.algorithms import find
from understudy.algorithms.rollouts import histories
from understudy.envs.make import resolve
from understudy.envs.native import CartPole
from understudy.training.device_loop import DeviceTrainer
from understudy.training.factory import make_trainer
from understudy.training.loop import HostTrainer
from understudy.training.trainer import TrainingSetup

pytestmark = pytest.mark.agents

MEMBERS, ENVS, STRIDE = 2, 3, 4
SMALL = dict(memory_size=5, hidden_sizes=(4,))
REPLAY = dict(
    **SMALL,
    sequence_length=9,
    burn_in=3,
    sequence_stride=STRIDE,
    buffer_size=150,
    batch_size=64,
    start_steps=60,  # what is seen is remembered while actions are random, too
    min_buffer_size=150,  # no update yet: the parameters are those that acted
)


class Hallway(gymnasium.Env):
    """Shows numbers that never come again; episodes of 3 to 9 steps, which are ended or cut off."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(3, 10))
        return self._look(), {}

    def step(self, action):
        self._left -= 1
        over = self._left == 0
        return self._look(), 1.0, over and bool(self.np_random.integers(2)), over, {}

    def _look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def trained(algorithm, env, config, steps):
    made = find(algorithm)(config)
    source = resolve(env)
    setup = TrainingSetup(made, source.spec, 3, MEMBERS, ENVS)
    trainer = make_trainer(setup, source, 0)
    trainer.advance(steps)
    return trainer


@cache
def with_replay(algorithm, env, memory):
    """A trainer whose replay is full; several tests read it."""
    return trained(algorithm, env, find(algorithm).config_class(**REPLAY, memory=memory), 45)


def member_of(trainer, member):
    """A member's experience and encoder, as NumPy."""
    of_all = jax.device_get((trainer.experience, trainer.policy()))
    experience, policy = jax.tree.map(lambda x: x[member], of_all)
    return experience, policy[0].observation_encoder


HYPER = {"gamma": jnp.float32(0.9), "reward_scale": jnp.float32(1)}


@partial(jax.jit, static_argnums=0)
def sample(buffer, kept, key):
    return buffer.sample(kept, key, HYPER)


@jax.jit
def recompute(encoder, history):
    return encoder.recurrent_states(history)


# Each kind of memory, and each loop.
@pytest.mark.parametrize(
    ("algorithm", "env", "loop", "memory"),
    [
        ("sac", Hallway, HostTrainer, "gru"),
        slow("sac", Hallway, HostTrainer, "lstm"),
        slow("td3", "jax:Pendulum-P-v1", DeviceTrainer, "gru"),
        slow("td3", "jax:Pendulum-P-v1", DeviceTrainer, "lstm"),
        slow("ddqn", CartPole(max_steps=11), DeviceTrainer, "gru"),
        slow("ddqn", CartPole(max_steps=11), DeviceTrainer, "lstm"),
        slow("mpo", "CartPole-v1", HostTrainer, "gru"),
        slow("mpo", "CartPole-v1", HostTrainer, "lstm"),
    ],
)
def test_replayed_memory_is_the_recorded_one(algorithm, env, loop, memory):
    trainer = with_replay(algorithm, env, memory)
    assert isinstance(trainer, loop) and trainer.position.updates == 0
    resets = compared = 0
    for member in range(MEMBERS):
        kept, encoder = member_of(trainer, member)
        buffer = dataclasses.replace(trainer.buffer, batch_size=64)
        batch, place = sample(buffer, kept, jax.random.PRNGKey(0))
        memories = np.asarray(recompute(encoder, batch.observation))
        history, place = jax.device_get((batch.observation, place))
        starts = kept.recurrent_state.shape[1]
        lane, start = place // starts, place % starts
        for later in (1, 2):  # the memories before the next two starts were recorded as well
            time = later * STRIDE
            recorded = kept.recurrent_state[lane, (start + later) % starts]
            again = np.where(history.first[:, time, None], 0.0, memories[:, time - 1])
            slot = (start * STRIDE + time) % kept.storage.reward.shape[1]
            real = kept.storage.step[lane, slot]
            assert real.sum() > 20
            np.testing.assert_allclose(recorded[real], again[real], atol=1e-5)
            assert np.abs(recorded[real]).max() > 0.05
            compared += real.sum()
            resets += int(history.first[real, :time].sum())
    assert compared > 100
    if env != "jax:Pendulum-P-v1":  # whose episodes are longer than this
        assert resets > 20


@partial(jax.jit, static_argnums=0)
def look_back(buffer, kept, encoder):
    """A rollout's steps, what they were acted from, their memories and what follows them."""
    steps, _ = buffer.sample(kept, jax.random.PRNGKey(0), HYPER)
    steps = steps._replace(last=steps.last | ~steps.valid)
    before, after = histories(steps)
    memories = encoder.recurrent_states(before)  # [envs, time, memory]
    ahead = encoder.cell(memories, steps.next_observation.swapaxes(0, 1))
    return before.first, memories, encoder(after), encoder.cell.features(ahead)


@pytest.mark.parametrize(
    ("env", "memory"),
    [
        (Hallway, "gru"),
        slow(Hallway, "lstm"),
        slow(CartPole(max_steps=7), "gru"),
        slow(CartPole(max_steps=7), "lstm"),
    ],
)
def test_a_rollouts_memory_is_the_recorded_one(env, memory):
    config = find("a2c").config_class(memory=memory, horizon=12, **SMALL, learning_rate=0.0)
    trainer = trained("a2c", env, config, 37)
    resets = 0
    for member in range(MEMBERS):
        kept, encoder = member_of(trainer, member)
        first, memories, following, ahead = jax.device_get(look_back(trainer.buffer, kept, encoder))
        recorded = np.roll(kept.recurrent_state, -int(kept.cursor), axis=0)
        for time in range(1, 12):
            again = np.where(first[:, time, None], 0.0, memories[:, time - 1])
            np.testing.assert_allclose(recorded[time], again, atol=1e-5)
        # What is asked about the step after is one more step of the cell, resets or not.
        wanted = ahead.reshape(-1, SMALL["memory_size"])
        np.testing.assert_allclose(following, wanted, atol=1e-5)
        resets += first.sum()
    assert resets > 3


def test_no_gradient_goes_through_the_burn_in():
    trainer = with_replay("sac", Hallway, "gru")
    kept, encoder = member_of(trainer, 0)
    buffer = dataclasses.replace(trainer.buffer, batch_size=16)
    batch, _ = sample(buffer, kept, jax.random.PRNGKey(1))

    def total(observation):
        history = jax.tree.map(lambda x: x, batch.observation)
        object.__setattr__(history, "observation", observation)
        return jnp.sum(encoder(history) ** 2)

    slope = jax.jit(jax.grad(total))(batch.observation.observation)
    slope, burn_in = np.asarray(slope), batch.observation.burn_in
    assert burn_in == 3 and not slope[:, :burn_in].any() and slope[:, burn_in].any()
