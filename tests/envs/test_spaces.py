import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.envs.spaces import spec_of, to_normalized, to_real
from understudy.training import actions
from understudy.types import (
    ArraySpec,
    Continuous,
    Discrete,
    EnvironmentError,
    Joint,
    MultiDiscrete,
    Part,
    Spec,
)

SEEN = spaces.Box(-1, 1, (3,))


def test_observations():
    for shape, dtype, name in [
        ((3,), np.float64, "float32"),
        ((), np.float32, "float32"),
        ((4, 4, 3), np.uint8, "uint8"),
        ((2, 2), np.int32, "int32"),
    ]:
        space = spaces.Box(0, 1, shape, dtype)
        assert spec_of(space, spaces.Discrete(2)).observation == ArraySpec(shape, name)


def test_actions():
    box = spaces.Box(np.float32([[-1, 0]]), np.float32([[3, 0.5]]))
    assert spec_of(SEEN, box).action == Continuous((-1.0, 0.0), (3.0, 0.5), (1, 2))
    assert spec_of(SEEN, spaces.Discrete(4, start=-1)).action == Discrete(4, -1)


def test_several_choices_at_once_cross_the_border_and_come_back():
    space = spaces.MultiDiscrete([[3, 2], [2, 4]], start=[[0, 1], [-1, 5]])
    spec = spec_of(SEEN, space)
    assert spec.action == MultiDiscrete((3, 2, 2, 4), (0, 1, -1, 5), (2, 2))
    ours = np.array([[0, 0, 0, 0], [2, 1, 1, 3]], np.int32)
    real = to_real(ours, spec)
    np.testing.assert_array_equal(real, [[[0, 1], [-1, 5]], [[2, 2], [0, 8]]])
    assert all(space.contains(action) for action in real)
    np.testing.assert_array_equal(to_normalized(real, spec), ours)
    bits = spec_of(SEEN, spaces.MultiBinary(3))
    assert bits.action == MultiDiscrete((2, 2, 2), (0, 0, 0), (3,))
    real = to_real(np.array([[1, 0, 1]]), bits)
    assert spaces.MultiBinary(3).contains(real[0].astype(np.int8))


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Dict(a=SEEN), spaces.Box(0, 5, (2,), np.int32)]
)
def test_unsupported_actions_list_what_is(space):
    with pytest.raises(EnvironmentError, match=r"supported: Box .* and MultiBinary"):
        spec_of(SEEN, space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Tuple([SEEN, SEEN]),
        spaces.Sequence(SEEN),
        spaces.Graph(SEEN, None),
        spaces.OneOf([SEEN, SEEN]),
        spaces.Box(0, 255, (2, 4, 4, 3), np.uint8),
    ],
)
def test_unsupported_observations_list_what_is(space):
    for asked, entry in ((space, ""), (spaces.Dict(a=spaces.Dict(b=space)), ' (entry "a/b")')):
        with pytest.raises(EnvironmentError, match=r"supported: Box .* and Dict of these") as told:
            spec_of(asked, spaces.Discrete(2))
        assert entry in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (9, 9, 3), np.float32),
        spaces.Box(0, 255, (3, 4, 4), np.int32),
        spaces.Box(0, 255, (84, 84), np.float64),
        spaces.Box(0, 1, (8, 8), np.int64),
    ],
)
def test_an_image_is_made_of_bytes(space):
    problem = rf"shape .* is an image of dtype {space.dtype}; an image must be uint8 in 0…255"
    for asked, entry in ((space, ""), (spaces.Dict(eye=space), ' (entry "eye")')):
        with pytest.raises(EnvironmentError, match=problem) as told:
            spec_of(asked, spaces.Discrete(2))
        assert entry in str(told.value) and "\n" not in str(told.value)


def test_matrices_of_numbers_are_no_images():
    for space in (
        spaces.Box(-1, 1, (9, 9), np.float32),
        spaces.Box(0, 1, (2, 9), np.float32),
        spaces.Box(0, np.inf, (9, 9), np.float32),
    ):
        assert spec_of(space, spaces.Discrete(2)).observation == ArraySpec(space.shape)
        part = spec_of(spaces.Dict(a=space), spaces.Discrete(2)).observation.parts[0]
        assert part == Part("a", space.shape, "float32")


def test_whole_numbers_become_floats_where_they_are_a_vector():
    seen = [
        spaces.Box(-5, 5, (3,), np.int64),
        spaces.Box(0, 255, (3,), np.uint8),
        spaces.Box(0, 1, (3,), np.bool_),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 3, 4]),
    ]
    for space in seen:
        assert spec_of(space, spaces.Discrete(2)).observation == ArraySpec((3,), "float32")


def test_a_choice_becomes_a_vector():
    part = Part("", (3,), "float32", choices=3, start=2)
    spec = spec_of(spaces.Discrete(3, start=2), spaces.Discrete(2))
    assert spec.observation == ArraySpec((3,), "float32", (part,))


def test_stacks_of_images_may_have_one_more_axis():
    space = spaces.Box(0, 255, (2, 4, 4, 3), np.uint8)
    space.frames = 2
    assert spec_of(space, spaces.Discrete(2)).observation == ArraySpec(
        (2, 4, 4, 3), "uint8", frames=2
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 3)), min_size=1, max_size=4))
def test_choices_made_as_one_cover_all_combinations(choices):
    counts, starts = np.array(choices).T
    space = spaces.MultiDiscrete(counts, start=starts)
    several = spec_of(SEEN, space)
    one = Spec(several.observation, Joint.over(several.action))
    assert isinstance(one.action, Joint) and one.action.n == math.prod(counts)
    number = np.arange(one.action.n, dtype=np.int32)
    real = to_real(number, one)
    combinations = itertools.product(*(range(s, s + n) for n, s in choices))
    assert list(map(tuple, real.tolist())) == list(combinations)  # the last choice fastest
    assert all(space.contains(action) for action in real)
    np.testing.assert_array_equal(to_normalized(real, one), number)
    # 4⁴ numbers, of which there may be several of a kind: few shapes, few programs.
    on_device = actions.to_real(jnp.asarray(np.resize(number, 256)), one)
    np.testing.assert_array_equal(on_device, np.resize(real, (256, len(counts))))


def test_choices_made_as_one_keep_the_shape_of_their_space():
    several = spec_of(SEEN, spaces.MultiDiscrete([[3, 2], [2, 4]], start=[[0, 1], [-1, 5]]))
    one = Spec(several.observation, Joint.over(several.action))
    assert to_real(np.array([47, 1]), one).tolist() == [[[2, 2], [0, 8]], [[0, 1], [-1, 6]]]
    assert to_normalized(np.array([[[2, 2], [0, 8]]]), one).tolist() == [47]


def test_worked_by_hand():
    spec = spec_of(SEEN, spaces.Box(np.float32([-3, 0.5]), np.float32([1, 7])))
    action = np.float32([[-1, -1], [0, 0], [1, 1], [5, -5]])
    real = to_real(action, spec)
    assert real.tolist() == [[-3, 0.5], [-1, 3.75], [1, 7], [1, 0.5]]
    assert real.dtype == np.float32
    assert to_normalized(real, spec).tolist() == [[-1, -1], [0, 0], [1, 1], [1, -1]]


def test_shape_of_the_box_comes_back():
    spec = spec_of(SEEN, spaces.Box(-2, 2, (2, 3)))
    assert to_real(np.ones((5, 6), np.float32), spec).shape == (5, 2, 3)
    assert to_normalized(np.ones((5, 2, 3), np.float32), spec).shape == (5, 6)


def test_unbounded_passes_through():
    spec = spec_of(SEEN, spaces.Box(-np.inf, np.inf, (2,)))
    action = np.float32([[-1e9, 0.25]])
    real = to_real(action, spec)
    assert real.tolist() == action.tolist()
    assert not np.shares_memory(real, action)


def test_discrete_counts_from_its_start():
    spec = spec_of(SEEN, spaces.Discrete(3, start=5))
    assert to_real(np.array([0, 2]), spec).tolist() == [5, 7]
    assert to_normalized(np.array([5, 7]), spec).tolist() == [0, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_policy_that_emits_nan_is_stopped_at_the_border(bad):
    spec = spec_of(SEEN, spaces.Box(-2, 2, (2,)))
    with pytest.raises(EnvironmentError, match=r"environment 1 .*not stepped"):
        to_real(np.float32([[0, 0], [0, bad]]), spec)


WIDE = st.floats(-1e38, 1e38)  # with subnormal widths and widths near the largest float32


@settings(max_examples=1_000, deadline=None)
@given(
    bounds=st.lists(st.tuples(WIDE, WIDE, st.floats(-3, 3)), min_size=1, max_size=4),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_actions_always_lie_inside_the_bounds(bounds, dtype):
    low = np.array([min(one, other) for one, other, _ in bounds], dtype)
    high = np.array([max(one, other) for one, other, _ in bounds], dtype)
    # Bounds with no float32 between them cannot be kept by a float32 action.
    high = np.where(high.astype(np.float32) - low.astype(np.float32) > 0, high, low + 1 + abs(low))
    space = spaces.Box(low, high, dtype=dtype)
    spec = spec_of(SEEN, space)
    action = np.float32([[position for *_, position in bounds]])
    real = to_real(action, spec)
    assert real.dtype == np.float32
    assert (real >= low).all() and (real <= high).all()
    extremes = to_real(np.float32([[-1] * len(low), [1] * len(low)]), spec)
    assert (extremes[0] >= low).all() and (extremes[1] <= high).all()
