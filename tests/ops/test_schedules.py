"""Schedules by hand, at their ends to the bit, and with bad input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.ops.schedules import (
    Curve,
    constant,
    cosine,
    evaluate,
    exponential,
    linear,
    piecewise,
)
from understudy.types import ConfigError

NAN = float("nan")
positive = st.floats(1e-6, 1e6)
RAMPS = [linear, exponential, cosine]


@pytest.mark.parametrize(
    ("curve", "values"),
    [
        (constant(0.3), [0.3, 0.3, 0.3, 0.3, 0.3]),
        (linear(1.0, 0.0), [1.0, 0.75, 0.5, 0.25, 0.0]),
        (linear(1, 3, steps=50), [1.0, 2.0, 3.0, 3.0, 3.0]),
        (exponential(16.0, 1.0), [16.0, 8.0, 4.0, 2.0, 1.0]),
        (exponential(1.0, 100.0, steps=5e1), [1.0, 10.0, 100.0, 100.0, 100.0]),
        (cosine(2.0, 0.0), [2.0, 1 + np.sqrt(0.5), 1.0, 1 - np.sqrt(0.5), 0.0]),
        (cosine(0.0, 1.0, steps=50), [0.0, 0.5, 1.0, 1.0, 1.0]),
        (piecewise([(25, 1.0), (75, 3.0)]), [1.0, 1.0, 2.0, 3.0, 3.0]),
        (piecewise([(0, 0.0), (50, 1.0), (100, 0.0)]), [0.0, 0.5, 1.0, 0.5, 0.0]),
        (piecewise([(30, 7.0)]), [7.0, 7.0, 7.0, 7.0, 7.0]),
    ],
)
def test_by_hand(curve, values):
    assert isinstance(curve, Curve)
    got = [curve(step, 100) for step in (0, 25, 50, 75, 100)]
    assert all(type(value) is float for value in got)
    assert got == pytest.approx(values, abs=1e-12)


@pytest.mark.parametrize("ramp", RAMPS)
@given(start=positive, end=positive, steps=st.integers(1, 10**7), step=st.integers(0, 10**7))
def test_ramps_stay_between_their_ends_and_reach_them(ramp, start, end, steps, step):
    low, high = min(start, end), max(start, end)
    for curve, horizon in ((ramp(start, end, steps), 7), (ramp(start, end), steps)):
        assert curve(0, horizon) == start
        assert curve(steps, horizon) == curve(steps + step, horizon) == end
        assert low * (1 - 1e-12) <= curve(step, horizon) <= high * (1 + 1e-12)


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.floats(-10, 10)),
        min_size=1,
        max_size=6,
        unique_by=lambda point: point[0],
    ),
    st.integers(0, 1200),
)
def test_piecewise_is_numpys_interpolation(points, step):
    points.sort()
    steps, values = zip(*points, strict=True)
    want = np.interp(step, steps, values)
    assert piecewise(points)(step, 5) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("ramp", RAMPS)
def test_one_value_per_member(ramp):
    together = ramp([1.0, 2.0], np.array([4.0, 8.0]))
    for step in (0, 30, 100, 101):
        got = together(step, 100)
        assert isinstance(got, np.ndarray) and got.dtype == np.float64
        np.testing.assert_array_equal(got, [ramp(1.0, 4.0)(step, 100), ramp(2.0, 8.0)(step, 100)])


def test_numbers_and_arrays_may_meet():
    np.testing.assert_array_equal(linear(0.0, [1.0, 2.0])(50, 100), [0.5, 1.0])
    np.testing.assert_array_equal(piecewise([(0, 0), (10, (1, 3))])(5, 9), [0.5, 1.5])
    np.testing.assert_array_equal(constant(np.array([1, 2]))(5, 9), [1.0, 2.0])


def test_a_curve_keeps_its_own_values():
    ends = np.array([1.0, 2.0])
    curve = linear(ends, 0.0)
    ends[:] = 9.0
    np.testing.assert_array_equal(curve(0, 10), [1.0, 2.0])


@pytest.mark.parametrize("curve", [constant(1.0), linear(1.0, 2.0), piecewise([(5, 1.0)])])
def test_a_run_without_steps_has_values_too(curve):
    assert curve(0, 0) in (1.0, 2.0) and curve(3, 0) in (1.0, 2.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant(NAN), "constant: value must be finite, got nan"),
        (lambda: constant("0.1"), "constant: value must be a number.*'0.1'"),
        (lambda: constant(True), "constant: value must be a number.*True"),
        (lambda: constant(None), "constant: value must be a number.*None"),
        (lambda: constant([]), "constant: value must be a number"),
        (lambda: constant([[1.0]]), "constant: value must be a number"),
        (lambda: constant([1.0, [2.0, 3.0]]), "constant: value must be a number"),
        (lambda: linear(1.0, float("inf")), "linear: end must be finite, got inf"),
        (lambda: linear([1.0, NAN], 0.0), "linear: start must be finite"),
        (lambda: linear([1.0, 2.0], [1.0, 2.0, 3.0]), "linear: .*seed, got 2 and 3"),
        (lambda: linear(1.0, 0.0, steps=0), "linear: steps must be a whole .* 1, got 0"),
        (lambda: linear(1.0, 0.0, steps=2.5), "linear: steps must be a whole .*got 2.5"),
        (lambda: cosine(1.0, 0.0, steps="ten"), "cosine: steps must be a whole .*'ten'"),
        (lambda: cosine(1.0, 0.0, steps=True), "cosine: steps must be a whole .*True"),
        (lambda: cosine(1.0, 0.0, steps=NAN), "cosine: steps must be a whole .*nan"),
        (lambda: cosine(1.0, 0.0, steps=1 + 2j), "cosine: steps must be a whole"),
        (lambda: exponential(0.0, 1.0), "exponential: start must be above 0, got 0.0"),
        (lambda: exponential(1.0, -1.0), "exponential: end must be above 0, got -1.0"),
        (lambda: exponential([1.0, 0.0], 1.0), "exponential: start must be above 0"),
        (lambda: piecewise([]), "piecewise: at least one point"),
        (lambda: piecewise(3), "piecewise: points must be pairs.*got 3"),
        (lambda: piecewise([1, 2]), "piecewise: points must be pairs"),
        (lambda: piecewise([(0, 1, 2)]), "piecewise: points must be pairs"),
        (lambda: piecewise([(5, 1.0), (3, 2.0)]), r"piecewise: steps must increase, got \[5, 3\]"),
        (lambda: piecewise([(5, 1.0), (5, 2.0)]), "piecewise: steps must increase"),
        (lambda: piecewise([(-1, 1.0)]), "piecewise: a point's step must be .* 0, got -1"),
        (lambda: piecewise([(0, 1.0), (9, NAN)]), "piecewise: the value at step 9 must be finite"),
        (lambda: piecewise([(0, [1, 2]), (9, [1, 2, 3])]), "piecewise: .*seed, got 2 and 3"),
        (lambda: constant(np.full(500, NAN)), "constant: value must be finite"),
    ],
)
def test_bad_input_is_answered_in_one_line(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 140


def test_evaluate_gives_a_curve_the_horizon_and_a_function_the_step():
    assert evaluate(linear(0.0, 1.0), 25, 100) == 0.25
    assert evaluate(lambda step: 1 / (1 + step), 3, 100) == 0.25
    answer = evaluate(lambda step: np.float32(step), 3, 100)
    assert answer == 3.0 and type(answer) is float
    np.testing.assert_array_equal(evaluate(lambda step: [step, 2 * step], 3, 100), [3.0, 6.0])


@pytest.mark.parametrize(
    ("answer", "message"),
    [(NAN, "finite, got nan"), ([1.0, NAN], "finite"), ("1", "number.*'1'"), (None, "None")],
)
def test_a_functions_bad_answer_names_the_step(answer, message):
    with pytest.raises(ConfigError, match=f"step 1200 must be .*{message}"):
        evaluate(lambda step: answer, 1200, 5000)
