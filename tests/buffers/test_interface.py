"""One suite for all buffers: each agrees with plain Python lists, however steps are handed over."""

from dataclasses import replace
from itertools import cycle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.donation import LONG_LANE, assert_in_place, pointers
from tests.buffers.frame_lists import MOMENTS, play, spec_of
from tests.buffers.interface_cases import (
    BUFFERS,
    LANES,
    ListedPriorities,
    Piece,
    add,
    add_plan,
    add_singly,
    assert_samples_are,
    blocks_of,
    count,
    cut_out,
    error_of_samples,
    init,
    plans,
    possible_samples,
    sample,
    sequences_of,
    update,
    whole,
    with_seeds,
)
from tests.buffers.plain_lists import hyper
from understudy.buffers import FrameReplayBuffer, ReplayBuffer, RolloutBuffer
from understudy.errors import CheckpointError
from understudy.types import ArraySpec, Discrete, Spec

ALL = list(BUFFERS)
REPLAY = [name for name in ALL if name != "rollout"]
ON_DEVICE = [name for name in ALL if not BUFFERS[name].external]
PRIORITIZED = [name for name in ALL if "prioritized" in name]


def of(*names):
    """A parameter `buffer`: these definitions."""
    return pytest.mark.parametrize("buffer", [pytest.param(BUFFERS[n], id=n) for n in names])


def assert_equal(one, two):
    """To the bit."""
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


def assert_same_samples(buffer, one, two):
    if isinstance(buffer, RolloutBuffer) or count(buffer, one) or sequences_of(buffer):
        assert_equal(sample(buffer, one), sample(buffer, two))
    if not isinstance(buffer, RolloutBuffer):
        assert count(buffer, one) == count(buffer, two)


# -- what is sampled ------------------------------------------------------------------------------


@of(*ALL)
@given(data=st.data())
@settings(max_examples=40)
def test_samples_are_those_of_the_lists(buffer, data):
    """n-step sums, ends of both kinds, cuts, rows that are no steps, wrap-around, several lanes."""
    moments, plan = data.draw(plans(buffer))
    played = play(moments, buffer.spec)
    state = add_plan(buffer, init(buffer), played, plan)
    possible = possible_samples(buffer, played)
    if isinstance(buffer, RolloutBuffer):
        assert_samples_are(sample(buffer, state)[0], buffer, possible)
        return
    assert count(buffer, state) == len(possible)
    if possible:
        batch, indices = sample(buffer, state)
        ids = assert_samples_are(batch, buffer, possible)
        assert set(ids) == set(possible)  # all of them
        if indices is not None:
            assert len({*zip(ids, indices, strict=True)}) == len({*ids}) == len({*indices})
        np.testing.assert_array_equal(batch.row, np.arange(len(batch.row)))
    elif sequences_of(buffer):
        assert not np.any(sample(buffer, state)[0].weight)


@of(*ALL)
@given(data=st.data())
@settings(max_examples=25)
def test_chunks_of_any_lengths_and_lanes_give_the_same_samples(buffer, data):
    """A chunk of T steps equals T chunks of one step of all lanes."""
    moments, plan = data.draw(plans(buffer))
    played = play(moments, buffer.spec)
    state = add_plan(buffer, init(buffer), played, plan)
    assert_same_samples(buffer, state, add_singly(buffer, init(buffer), played))


@of(*ALL)
@pytest.mark.parametrize("kinds", ["-", "T", "-t", "--C"])
def test_chunks_of_every_shape(buffer, kinds):
    """One after the other, until all lanes have wrapped around."""
    played = play([kinds[at % len(kinds)] * LANES for at in range(MOMENTS)], buffer.spec)
    singly, chunked, begin = init(buffer), init(buffer), 0
    for block in cycle(blocks_of(buffer)):
        if begin + block[0] > MOMENTS:
            break
        chunked = add_plan(buffer, chunked, played, [block], begin)
        singly = add_plan(buffer, singly, played, [whole(1)] * block[0], begin)
        assert_same_samples(buffer, chunked, singly)
        begin += block[0]
    assert begin > 2 * buffer.num_slots


@of(*REPLAY)
@given(data=st.data())
@settings(max_examples=25)
def test_rows_that_are_not_valid_leave_no_trace(buffer, data):
    """With and without them, samples are the same."""
    moments, plan = data.draw(plans(buffer))
    with_rows = add_plan(buffer, init(buffer), play(moments, buffer.spec), plan)
    # Each lane's steps alone, moved together; what is left of a lane is one tail of nothing.
    lanes = ["".join(kinds).replace("X", "") for kinds in zip(*moments, strict=True)]
    dense = [lane.ljust(len(moments), "X") for lane in lanes]
    dense = play(["".join(kinds) for kinds in zip(*dense, strict=True)], buffer.spec)
    assert_same_samples(buffer, with_rows, add_singly(buffer, init(buffer), dense))


@of(*REPLAY)
@given(data=st.data())
@settings(max_examples=25)
def test_a_cut_is_a_truncation_of_the_step_before(buffer, data):
    """And nothing where no episode is open."""
    moments, plan = data.draw(plans(buffer))
    truncated = [list(moment) for moment in moments]
    for lane in range(LANES):
        for time, kinds in enumerate(truncated):
            if kinds[lane] == "C":
                kinds[lane] = "X"
                steps = [at for at in range(time) if truncated[at][lane] != "X"]
                if steps and truncated[steps[-1]][lane] == "-":
                    truncated[steps[-1]][lane] = "t"
    cut, truncated = (play(m, buffer.spec) for m in (moments, ["".join(m) for m in truncated]))
    state = add_plan(buffer, init(buffer), cut, plan)
    assert_same_samples(buffer, state, add_singly(buffer, init(buffer), truncated))


@of(*ON_DEVICE)
def test_seeds_have_states_of_their_own(buffer):
    """Each adds its own part of the lanes, several steps at once, and samples what it would
    alone."""
    histories = (["---", "-t-", "T-C", "---", "--X", "t--"] * 2, ["-T-", "t--", "C--"] * 4)
    played = [play(moments, buffer.spec) for moments in histories]
    states = [add_singly(buffer, init(buffer), one) for one in played]
    pieces = (Piece(0, 3, 0, 2), Piece(0, 3, 1, 2))
    if isinstance(buffer, RolloutBuffer):
        pieces = (Piece(0, 3), Piece(0, 3))
    chunks = [cut_out(one, 4, piece) for one, piece in zip(played, pieces, strict=True)]
    both = [jax.tree.map(lambda *x: np.stack(x), *trees) for trees in (states, chunks)]
    together = jax.jit(jax.vmap(buffer.add))(*both)
    for seed, (state, chunk) in enumerate(zip(states, chunks, strict=True)):
        own = jax.tree.map(lambda x, seed=seed: x[seed], together)
        assert_same_samples(buffer, own, add(buffer, state, chunk))


@of(*REPLAY)
def test_an_empty_buffer_stays_empty_without_steps(buffer):
    played = play(["XXC", "CXX", "XCX"], buffer.spec)
    state = add_singly(buffer, init(buffer), played)
    assert count(buffer, init(buffer)) == count(buffer, state) == 0
    if sequences_of(buffer):
        batch, _ = sample(buffer, state)
        assert not np.any(batch.weight)


# -- priorities -----------------------------------------------------------------------------------


@of(*PRIORITIZED)
@given(data=st.data())
@settings(max_examples=30)
def test_priorities_are_those_of_the_lists(buffer, data):
    """New samples get the largest, sampled ones that of their errors; seen through the weights."""
    moments, plan = data.draw(plans(buffer, max_size=6))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    played = play(moments, buffer.spec)
    state, model, begin = init(buffer), ListedPriorities(), 0
    for seed, block in enumerate(plan):
        state = add_plan(buffer, state, played, [block], begin)
        begin += block[0]
        possible = possible_samples(buffer, play(moments[:begin], buffer.spec))
        model.follow(possible)
        if not possible:
            continue
        batch, indices = sample(buffer, state, seed)
        ids = assert_samples_are(batch, buffer, possible, skip=["weight"])
        assert len({*zip(ids, indices, strict=True)}) == len({*ids}) == len({*indices})
        is_step = np.array([possible[number]["weight"] for number in ids])
        weight = (is_step.T * model.weights(ids)).T.reshape(-1)
        np.testing.assert_allclose(batch.weight, weight, rtol=1e-3)
        errors = random.choice([0.0, 0.1, 1.0, 30.0], len(batch.weight)) * random.normal(
            size=len(batch.weight)
        )
        accepted = data.draw(st.booleans())
        if accepted:
            model.update(ids, error_of_samples(buffer, np.float32(errors), batch.weight))
        priorities = update(buffer, state, batch, indices, errors, accepted)
        if not accepted:
            assert_equal(priorities, buffer.get_priorities(state))
        state = buffer.with_priorities(state, priorities)
        np.testing.assert_allclose(priorities.largest, model.largest, rtol=1e-4)


@of(*PRIORITIZED)
@pytest.mark.parametrize("errors", [0.0, np.nan, np.inf])
def test_an_update_that_is_not_accepted_changes_nothing(buffer, errors):
    played = play(["---", "-t-", "--C", "---"] * 3, buffer.spec)
    state = add_singly(buffer, init(buffer), played)
    batch, indices = sample(buffer, state)
    errors = np.full(len(batch.weight), errors)
    priorities = update(buffer, state, batch, indices, errors, accepted=False)
    assert_equal(priorities, buffer.get_priorities(state))
    assert_equal(sample(buffer, buffer.with_priorities(state, priorities)), (batch, indices))


@of(*(name for name in ALL if name not in PRIORITIZED))
def test_buffers_without_priorities(buffer):
    state = init(buffer)
    nothing = jnp.zeros(1)
    assert buffer.get_priorities(state) is None
    assert buffer.with_priorities(state, None) is state
    assert buffer.update_priorities(state, None, nothing, nothing, jnp.bool_(True)) is None


# -- states as arrays -----------------------------------------------------------------------------


@of(*ALL)
@given(data=st.data())
@settings(max_examples=20)
def test_a_loaded_state_gives_the_same_samples(buffer, data):
    """At once and after more steps; and the arrays are copies."""
    moments, plan = data.draw(plans(buffer))
    played = play(moments, buffer.spec)
    early = data.draw(st.integers(0, len(plan)))
    begin = sum(time for time, _ in plan[:early])
    state = add_plan(buffer, init(buffer), played, plan[:early])
    if buffer.get_priorities(state) is not None and count(buffer, state):
        batch, indices = sample(buffer, state)
        errors = np.linspace(0.1, 5.0, len(batch.weight))
        priorities = update(buffer, state, batch, indices, errors, accepted=True)
        state = buffer.with_priorities(state, priorities)
    if buffer.external:
        arrays = buffer.state_dict(state)
        loaded = buffer.load_state_dict(buffer.init(), arrays)
    else:
        arrays = buffer.state_dict(with_seeds(state))
        loaded = buffer.load_state_dict(with_seeds(init(buffer)), arrays)
        loaded = jax.tree.map(lambda x: np.asarray(x)[0], loaded)
    copies = {name: array.copy() for name, array in arrays.items()}
    assert_same_samples(buffer, state, loaded)
    state, loaded = (add_plan(buffer, x, played, plan[early:], begin) for x in (state, loaded))
    assert_same_samples(buffer, state, loaded)
    assert_equal(arrays, copies)


def resized(buffer, by):
    """The same definition with room for more steps."""
    if buffer.external:
        return replace(buffer, frames=resized(buffer.frames, by))
    if isinstance(buffer, RolloutBuffer):
        return replace(buffer, horizon=buffer.horizon + by)
    return replace(buffer, capacity=buffer.capacity + by * LANES)


@of(*ALL)
def test_a_state_of_a_larger_buffer_is_refused(buffer):
    larger = resized(buffer, 6)
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(larger.init))
    if not isinstance(buffer, RolloutBuffer):
        state = state._replace(stored=np.full_like(state.stored, larger.num_slots - 1))
    arrays = larger.state_dict(state if buffer.external else with_seeds(state))
    empty = init(buffer) if buffer.external else with_seeds(init(buffer))
    with pytest.raises(CheckpointError, match="does not fit this agent"):
        buffer.load_state_dict(empty, arrays)


@of(*ALL)
def test_nbytes_is_what_is_allocated(buffer):
    leaves = jax.tree.leaves(buffer.init())
    assert buffer.nbytes == sum(leaf.nbytes for leaf in leaves)


VECTORS = Spec(ArraySpec((2,)), Discrete(3))


def test_a_wrapped_state_of_a_smaller_buffer_is_refused():
    """Its oldest steps would lie in the wrong place."""
    small = ReplayBuffer(VECTORS, 4, 1)
    arrays = small.state_dict(with_seeds(small.init()))
    larger = ReplayBuffer(VECTORS, 9, 1)
    arrays["stored"] = np.full_like(arrays["stored"], 4)  # the cursor is at the first slot again
    with pytest.raises(CheckpointError, match=r"storage\.reward is"):
        larger.load_state_dict(with_seeds(larger.init()), arrays)


def test_a_wrapped_state_of_a_smaller_frame_buffer_is_refused():
    """Also if its cursor is at the last slot again: the frames before the first slot are lost."""
    small = FrameReplayBuffer(spec_of(3, "uint8"), 4, 1)
    state, played = init(small), play(["-"] * MOMENTS, small.spec)
    for moment in range(2 * small.num_slots - 1):
        state = add(small, state, cut_out(played, moment, Piece(0, 1, lanes=1)))
    assert state.cursor.tolist() == state.stored.tolist() == [small.num_slots - 1]
    larger = replace(small, capacity=9)
    arrays = small.state_dict(with_seeds(state))
    with pytest.raises(CheckpointError, match=r"storage\.reward is"):
        larger.load_state_dict(with_seeds(larger.init()), arrays)


# -- chunks that are refused ----------------------------------------------------------------------


@of(*ALL)
def test_a_chunk_that_is_not_shorter_than_a_lane_is_refused(buffer):
    played = play(["---"] * MOMENTS, buffer.spec)
    longest, too_long = (cut_out(played, 0, Piece(0, buffer.num_slots - by)) for by in (1, 0))
    add(buffer, init(buffer), longest)
    with pytest.raises(AssertionError):
        add(buffer, init(buffer), too_long)


def test_a_rollout_refuses_a_part_of_the_lanes():
    buffer = BUFFERS["rollout"]
    chunk = cut_out(play(["---"], buffer.spec), 0, Piece(0, 1, 1, 2))
    with pytest.raises(AssertionError, match="all lanes"):
        add(buffer, init(buffer), chunk)


# -- donation -------------------------------------------------------------------------------------


def of_long_lanes(buffer, lanes):
    """A definition whose lanes have so many slots that no other array is as large."""
    other = replace(buffer, lanes=lanes, batch_size=4, capacity=LONG_LANE * lanes)
    other = replace(other, capacity=(2 * LONG_LANE - other.num_slots) * lanes)
    assert other.num_slots == LONG_LANE
    return other


def counts_slots(buffer):
    """Importance weights need the number of steps, and images have final frames among them."""
    is_frames = isinstance(buffer, FrameReplayBuffer)
    return is_frames and buffer.priority_exponent is not None and buffer.sequences is None


@of(*(name for name in ON_DEVICE if name != "rollout"))
@pytest.mark.parametrize("time, lanes", [(1, 1), (1, 3), (4, 1), (4, 3)])
def test_a_donated_state_is_changed_in_place(buffer, time, lanes):
    """By a program that adds, samples and updates priorities: no array as large as a lane is
    copied."""
    buffer = of_long_lanes(buffer, lanes)
    played = play(["-" * lanes] * time, buffer.spec)
    chunk = cut_out(played, 0, Piece(0, time, None, lanes))

    def program(state, chunk, key):
        state = buffer.add(state, chunk)
        batch, indices = buffer.sample(state, key, hyper())
        accepted = batch.weight[0] > 0
        priorities = buffer.update_priorities(state, indices, batch.reward, batch.weight, accepted)
        return buffer.with_priorities(state, priorities), batch

    state, key = jax.jit(buffer.init)(), jax.random.PRNGKey(0)
    compiled = jax.jit(program, donate_argnums=0).lower(state, chunk, key).compile()
    assert f"{lanes},{LONG_LANE}" in compiled.as_text()
    assert_in_place(compiled, counts_slots=counts_slots(buffer))
    before = pointers(state.storage)
    after, _ = compiled(state, chunk, key)
    assert before == pointers(after.storage)
    assert np.asarray(after.stored).tolist() == [time] * lanes


@pytest.mark.parametrize("time", [1, 4])
def test_a_donated_rollout_is_changed_in_place(time):
    buffer = replace(BUFFERS["rollout"], horizon=LONG_LANE)
    chunk = cut_out(play(["---"] * time, buffer.spec), 0, Piece(0, time))
    state = jax.jit(buffer.init)()
    compiled = jax.jit(buffer.add, donate_argnums=0).lower(state, chunk).compile()
    assert_in_place(compiled)
    before = pointers(state.storage)
    after = compiled(state, chunk)
    assert before == pointers(after.storage) and int(after.cursor) == time
