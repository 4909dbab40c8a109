"""What is told of an episode is told of all of it, and of nothing else."""

from functools import partial
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.envs.walking import LENGTH, Walk, by_hand
from tests.envs.walking import place as host_place
from tests.envs.walking_native import SPEC, NativeWalk, place
from understudy.algorithms import find
from understudy.algorithms.base import Algorithm
from understudy.buffers import ReplayBuffer
from understudy.envs import EpisodeSeeds, Guard, SerialEnvs
from understudy.envs.make import EnvSource
from understudy.training.episode_runner import EpisodePlan, HostEpisodeRunner
from understudy.training.native_episode_runner import NativeEpisodeRunner
from understudy.types import Continuous

# They end after 1, 2 and 4 steps, and not at all: numbers that float32 adds without rounding.
WAYS = ((1.0, 0.5), (0.5, -0.25), (0.25, 1.0), (-0.5, 0.0))
ROWS = len(WAYS)
SEEDS = EpisodeSeeds(3, ROWS)
KEYS = jax.random.split(jax.random.PRNGKey(0), ROWS)


class Onward(Algorithm):
    """A policy is an action."""

    name, supported_actions = "onward", (Continuous,)
    config_class = find("td3").config_class
    needs = property(lambda self: self.config.needs)

    def act(self, policy, memory, observation, first, key, explore):
        assert explore is False
        return jnp.broadcast_to(policy, (len(observation), 2)), memory, {}

    def memory(self, policy, num_envs):
        return ()

    def _unused(self, *arguments):
        raise AssertionError("playing only acts")

    init_params = optimizers = policy = gradients = explore = _unused


BUFFER = ReplayBuffer(SPEC, 400, ROWS)
add = jax.jit(BUFFER.add)


def episode_plan(descriptor, limit=None, algorithm=None):
    return EpisodePlan(
        algorithm or Onward(), SPEC, SEEDS, ROWS, descriptor=descriptor, episode_length=limit,
        attempts=3,
    )  # fmt: skip


def play_native(over, limit, walk=None):
    runner = NativeEpisodeRunner(episode_plan(place(over), limit), walk or NativeWalk(), BUFFER)
    return jax.jit(runner.play)(jnp.array(WAYS), KEYS, BUFFER.init())


def source_of(factories):
    return EnvSource(None, SPEC, ROWS, lambda *_: (factories, True))


def play_host(over, limit, only=True, ways=WAYS, plans=None, guard=None):
    parts = [partial(Walk, plan=(plans or {}).get(row)) for row in range(ROWS)]
    plan = episode_plan(host_place(over), limit)
    runner = HostEpisodeRunner(plan, source_of(parts), guard=guard or Guard())
    chunks, stored = [], BUFFER.init()
    with patch.object(SerialEnvs, "steps_rows", only):
        played = runner.run(jnp.array(ways), on_chunk=chunks.append)
    for chunk in chunks:
        stored = add(stored, chunk)
    return played, stored


def lane(stored, row):
    """The steps of a lane, oldest first."""
    return jax.tree.map(lambda x: np.asarray(x)[row, : int(stored.stored[row])], stored.storage)


def assert_lane_is(stored, row, steps, action):
    kept = lane(stored, row)
    assert kept.next_observation.tolist() == [step["there"] for step in steps]
    starts = [[0.0, 0.0], *(step["there"] for step in steps)]
    for place_of_step, step in enumerate(steps[:-1]):
        if step["last"]:  # and the next begins in the middle
            starts[place_of_step + 1] = [0.0, 0.0]
    assert kept.observation.tolist() == starts[:-1]
    assert kept.action.tolist() == [list(action)] * len(steps)
    for name in ("reward", "terminated", "last"):
        assert getattr(kept, name).tolist() == [step[name] for step in steps], name


def assert_told_is(played, row, steps, over):
    places = np.array([step["there"] for step in steps])
    assert played.returns[row] == sum(step["reward"] for step in steps)
    assert played.lengths[row] == len(steps)
    wanted = places.mean(axis=0) if over == "mean" else places[-1]
    np.testing.assert_allclose(played.descriptors[row], wanted, rtol=1e-6)


@pytest.mark.parametrize("limit", [None, 3, 1, 99])
@pytest.mark.parametrize("over", ["mean", "last"])
@pytest.mark.parametrize("play", [play_native, play_host], ids=["native", "host"])
def test_nothing_after_the_first_episode_counts(play, over, limit):
    played, stored = play(over, limit)
    for row, way in enumerate(WAYS):
        steps = by_hand(way, min(limit or LENGTH, LENGTH))
        assert_told_is(played, row, steps, over)
        assert_lane_is(stored, row, steps, way)
    assert stored.storage.last.any() and played.descriptors.dtype == np.float32


def test_a_cut_by_the_limit_is_no_termination():
    """What was never reached is not worth nothing: such steps bootstrap."""
    for play in (play_native, play_host):
        kept = [lane(play("last", 3)[1], row) for row in range(ROWS)]
        assert [bool(one.terminated[-1]) for one in kept] == [True, True, False, False]
        assert all(one.last[-1] for one in kept)


def test_environments_that_reset_themselves_change_nothing():
    """Without `only` all are stepped, and finished rows go on in episodes that do not count."""
    played, stored = play_host("mean", None, only=False)
    for row, way in enumerate(WAYS):
        assert_told_is(played, row, by_hand(way), "mean")
        assert_lane_is(stored, row, by_hand(way), way)


def test_networks_do_the_same_on_native_and_on_host_environments():
    td3 = find("td3")(find("td3").config_class(hidden_sizes=(8,)))
    policies = jax.vmap(lambda key: td3.policy(td3.init(SPEC, key)))(KEYS)
    native = NativeEpisodeRunner(episode_plan(place("mean"), algorithm=td3), NativeWalk())
    there, _ = jax.jit(native.play)(policies, KEYS)
    plan = episode_plan(host_place("mean"), algorithm=td3)
    here = HostEpisodeRunner(plan, source_of([Walk] * ROWS)).run(policies)
    for one, other in zip(here[:3], there[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert len(set(here.returns.tolist())) == ROWS


def raises(row, *steps):
    """One episode after the other goes wrong, at these steps."""
    return {row: {SEEDS(row, episode): (at, "raise") for episode, at in enumerate(steps)}}


@pytest.mark.parametrize("over", ["mean", "last"])
def test_an_episode_cut_by_a_fault_begins_anew(over):
    played, stored = play_host(over, None, plans=raises(2, 3))
    for row, way in enumerate(WAYS):
        assert_told_is(played, row, by_hand(way), over)
    # What happened before the fault is true as well; nothing is known of what follows.
    before = by_hand(WAYS[2])[:2]
    before[-1]["last"] = True
    assert_lane_is(stored, 2, before + by_hand(WAYS[2]), WAYS[2])
    assert_lane_is(stored, 3, by_hand(WAYS[3]), WAYS[3])


@pytest.mark.parametrize("faults", [2, 3])
def test_after_three_tries_it_has_failed(faults):
    guard, plans = Guard(most_rebuilds=9), raises(3, *[2] * faults)
    played, stored = play_host("mean", None, plans=plans, guard=guard)
    assert bool(np.isnan(played.returns[3])) == (faults == 3)
    assert int(stored.stored[3]) == (3 if faults == 3 else 2 + LENGTH)
    for row in range(3):
        assert_told_is(played, row, by_hand(WAYS[row]), "mean")


def test_a_policy_that_gives_no_numbers_fails_alone():
    ways = [WAYS[0], (np.nan, 0.0), *WAYS[2:]]
    played, stored = play_host("last", None, ways=ways)
    assert np.isnan(played.returns[1]) and int(stored.stored[1]) == 0
    for row in (0, 2, 3):
        assert_told_is(played, row, by_hand(WAYS[row]), "last")
    played, _ = play_host("last", None, ways=[(np.inf, np.nan)] * ROWS)
    assert np.isnan(played.returns).all()


def test_steps_that_are_not_finite_stay_out_of_replay():
    played, stored = play_native("mean", None, NativeWalk(stumbles_at=-1.0))
    assert np.isnan(played.returns[3]) and np.isnan(played.descriptors[3]).all()
    until = by_hand(WAYS[3], 2)  # at -1.5 it stumbles
    assert_lane_is(stored, 3, until, WAYS[3])
    for row in range(3):
        assert_lane_is(stored, row, by_hand(WAYS[row]), WAYS[row])
        assert_told_is(played, row, by_hand(WAYS[row]), "mean")
