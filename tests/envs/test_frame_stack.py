"""Stacks of frames, made by hand from what the environment showed."""

from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from understudy.envs import EpisodeSeeds, Stacked, resolve, stack_frames
from understudy.envs.native import MinAtarBreakout
from understudy.types import ArraySpec, ConfigError, EnvironmentError

COUNT = 3
SHAPE = (8, 8)


class Film(gymnasium.Env):
    """Shows seed + time in every pixel; the episode lasts as many steps as the action says, and
    the array is always the same one."""

    observation_space = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gymnasium.spaces.Discrete(9)

    def __init__(self, breaks: bool = False):
        self.breaks = breaks
        self.array = np.zeros(SHAPE, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.time = 0
        self.array[:] = (seed or 0) % 100
        return self.array, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        self.array += 1
        shown = self.array[:4] if self.breaks else self.array
        return shown, 0.0, self.time == action, False, {}


def pixel(stack: np.ndarray) -> list[int]:
    """The frames' values, oldest first, where each is of one color."""
    assert (stack == stack[..., :1, :1]).all()
    return stack[..., 0, 0].tolist()


def test_a_stack_grows_from_copies_of_the_first_frame():
    env = Stacked(Film(), COUNT)
    for seed in (10, 40):
        stack, _ = env.reset(seed=seed)
        assert stack.shape == env.observation_space.shape == (COUNT, *SHAPE)
        assert env.observation_space.contains(stack)
        seen = [pixel(stack)]
        for _ in range(4):
            stack[:] = 255  # it is the caller's
            stack, *_ = env.step(8)
            seen.append(pixel(stack))
        ages = ([0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4])
        assert seen == [[seed + age for age in row] for row in ages]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes)])
@pytest.mark.parametrize("evaluation", [False, True])
def test_every_environment_of_a_source_is_wrapped(workers, evaluation):
    source = stack_frames(resolve(Film, 2), COUNT)
    assert source.spec.observation == ArraySpec((COUNT, *SHAPE), "uint8", frames=COUNT)
    seeds = EpisodeSeeds(0, 2)
    seeds = seeds.for_evaluation() if evaluation else seeds
    envs = source.make_host(2, seeds, workers)
    assert envs.spec == source.spec
    first = [[seeds(row, episode) % 100 for row in range(2)] for episode in range(2)]
    assert pixel(envs.reset()) == [[value] * COUNT for value in first[0]]
    envs.step(np.array([2, 2]))
    step = envs.step(np.array([2, 8]))  # the first episode of row 0 ends here
    assert step.last.tolist() == [True, False]
    assert pixel(step.next_observation) == [[value, value + 1, value + 2] for value in first[0]]
    assert pixel(step.observation)[0] == [first[1][0]] * COUNT
    envs.close()


def test_an_instance_is_wrapped_and_so_are_its_copies():
    source = stack_frames(resolve(Film()), COUNT)
    for seeds in (EpisodeSeeds(0), EpisodeSeeds(0).for_evaluation()):
        envs = source.make_host(1, seeds)
        assert envs.spec == source.spec and envs.reset().shape == (1, COUNT, *SHAPE)
        envs.close()


def test_a_vector_environment_stacks_for_itself():
    modes = dict(autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(EnvironmentError, match=r"Stacked\(env, 3\)") as caught:
        stack_frames(resolve(SyncVectorEnv([Film] * 2, **modes)), COUNT)
    assert "\n" not in str(caught.value)
    vector = SyncVectorEnv([lambda: Stacked(Film(), COUNT)] * 2, **modes)
    source = resolve(vector)
    assert source.spec.observation.frames == COUNT
    assert stack_frames(source, COUNT) is source
    envs = source.make_host(2, EpisodeSeeds(0, 2))
    begun = pixel(envs.reset())
    step = envs.step(np.array([1, 8]))
    assert pixel(step.next_observation) == [[*row[1:], row[-1] + 1] for row in begun]
    assert len(set(pixel(step.observation)[0])) == 1
    envs.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (partial(resolve, "Pendulum-v1"), r"images, but observations are vectors of shape \(3,\)$"),
        (partial(resolve, "jax:Pendulum-v1"), r"vectors of shape \(3,\)$"),
        (lambda: stack_frames(resolve(Film), 2), r"stacks of 2 frames already$"),
        (lambda: stack_frames(MinAtarBreakout(), 2), r"stacks of 2 frames already$"),
    ],
)
def test_only_single_images_can_be_stacked(source, message):
    with pytest.raises(EnvironmentError, match=r"^frame_stack=3 is for .*" + message) as caught:
        stack_frames(source(), COUNT)
    assert "\n" not in str(caught.value)


def test_one_frame_is_no_stack():
    source = resolve("Pendulum-v1")
    assert stack_frames(source, 1) is source
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        stack_frames(source, 0)


def test_a_frame_of_another_shape_is_told_as_such():
    envs = stack_frames(resolve(partial(Film, breaks=True)), COUNT).make_host(1, EpisodeSeeds(0))
    envs.reset()
    with pytest.raises(EnvironmentError, match=r"expected .* \(3, 8, 8\), got \(4, 8\)"):
        envs.step(np.array([8]))
    envs.close()


def test_native_stacks_hold_what_the_environment_showed():
    plain = MinAtarBreakout(sticky=0.0)
    stacked = stack_frames(plain, COUNT)
    assert stacked.spec.observation == ArraySpec((COUNT, 10, 10, 4), "bool", frames=COUNT)
    assert (stacked.spec.action, stacked.max_steps) == (plain.spec.action, plain.max_steps)
    keys = jax.random.split(jax.random.PRNGKey(0), 6)

    def play(env, key):
        state, first = env.reset(key)

        def advance(state, key):
            step = env.step(state, jnp.int32(1), key)
            return step.state, step.observation

        return first, jax.lax.scan(advance, state, keys)[1]

    first, frames = jax.jit(partial(play, plain))(keys[0])
    first_stack, stacks = jax.jit(partial(play, stacked))(keys[0])
    film = np.concatenate([np.repeat(first[None], COUNT, axis=0), frames])
    assert (np.asarray(first_stack) == film[:COUNT]).all()
    for time, stack in enumerate(np.asarray(stacks), start=1):
        assert (stack == film[time : time + COUNT]).all()
