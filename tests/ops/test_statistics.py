import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from understudy.ops.statistics import (
    iqm,
    mean,
    mean_with_band,
    stratified_bootstrap_interval,
    summary,
)

finite = st.floats(-1e6, 1e6)


def test_iqm_by_hand():
    # eight values: two go at either end, (2 + 3 + 4 + 5) / 4 remains
    assert iqm([100.0, 2.0, 3.0, -50.0, 4.0, 5.0, 1.0, 6.0]) == 3.5
    # five values: one goes at either end
    assert iqm([10.0, 1.0, 2.0, 3.0, -9.0]) == 2.0
    # three values: nothing goes
    assert iqm([0.0, 1.0, 5.0]) == 2.0
    assert iqm(7.0) == 7.0


@given(st.lists(finite, min_size=1, max_size=60))
def test_iqm_agrees_with_scipy(values):
    expected = scipy.stats.trim_mean(np.array(values), 0.25)
    assert iqm(values) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_iqm_pools_seeds_and_episodes():
    scores = np.arange(12.0).reshape(3, 4)
    assert iqm(scores) == iqm(scores.ravel())


def test_a_diverged_seed_is_not_trimmed_out_of_sight():
    assert math.isnan(iqm([1.0, 2.0, 3.0, 4.0, float("nan")]))


def test_interval_of_two_values_by_hand():
    # the resampled means of {0, 1} are 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4
    assert stratified_bootstrap_interval([0.0, 1.0], mean) == (0.0, 1.0)
    assert stratified_bootstrap_interval([0.0, 1.0], mean, confidence=0.4) == (0.5, 0.5)


def test_interval_agrees_with_scipy():
    scores = np.random.default_rng(3).normal(10.0, 2.0, size=30)
    ours = stratified_bootstrap_interval(scores, mean, resamples=20_000)
    theirs = scipy.stats.bootstrap(
        (scores,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_episodes_of_one_seed_are_drawn_together():
    # Two agents, each perfectly repeatable: a hundred episodes tell no more than one does.
    repeatable = np.repeat([[0.0], [1.0]], 100, axis=1)
    assert stratified_bootstrap_interval(repeatable, mean) == (0.0, 1.0)


def test_a_single_seed_gives_the_interval_over_its_episodes():
    episodes = np.random.default_rng(0).normal(size=40)
    assert stratified_bootstrap_interval(episodes[None], mean) == stratified_bootstrap_interval(
        episodes, mean
    )


def test_every_task_is_in_every_resample():
    # Tasks of very different scale, no spread within either: nothing is left to chance. Pooled
    # drawing would sometimes leave a task out and give a wide interval.
    scores = np.stack([np.zeros((5, 2)), np.full((5, 2), 1000.0)])
    assert stratified_bootstrap_interval(scores, mean) == (500.0, 500.0)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    experiments = 150
    for i in range(experiments):
        # an agent's own quality, and on top of it the luck of each episode
        scores = rng.normal(size=(20, 1)) + rng.normal(size=(20, 5))
        low, high = stratified_bootstrap_interval(scores, mean, resamples=200, seed=i)
        covered += low <= 0.0 <= high
    # Percentile intervals of 20 seeds cover about 93 %. Drawing episodes singly would cover
    # some 70 %; three standard errors of 150 experiments are 6 %.
    assert 0.86 <= covered / experiments <= 0.98


@given(st.lists(finite, min_size=1, max_size=12), st.integers(0, 5))
def test_the_interval_lies_within_the_data_and_repeats(values, seed):
    interval = stratified_bootstrap_interval(values, mean, resamples=50, seed=seed)
    low, high = interval
    assert min(values) - 1e-6 <= low <= high <= max(values) + 1e-6
    assert interval == stratified_bootstrap_interval(values, mean, resamples=50, seed=seed)


def test_the_band_of_curves_is_the_interval_at_every_point():
    curves = np.random.default_rng(5).normal(size=(8, 3)) * [1.0, 5.0, 0.0]
    center, low, high = mean_with_band(curves, resamples=5_000)
    np.testing.assert_allclose(center, curves.mean(axis=0))
    for point in range(3):
        alone = stratified_bootstrap_interval(curves[:, point], mean, resamples=5_000)
        assert (low[point], high[point]) == pytest.approx(alone, abs=0.05 * 5)
    assert low[2] == high[2] == 0.0


def test_the_band_where_seeds_have_no_value():
    nan = float("nan")
    center, low, high = mean_with_band(np.array([[1.0, 4.0, nan], [3.0, nan, nan]]))
    np.testing.assert_array_equal(center, [2.0, 4.0, nan])
    np.testing.assert_array_equal(low, [1.0, 4.0, nan])
    np.testing.assert_array_equal(high, [3.0, 4.0, nan])


def test_summary_by_hand():
    facts = summary([[1.0, 3.0], [5.0, 7.0]])
    assert facts["mean"] == 4.0
    assert facts["std"] == pytest.approx(math.sqrt(5.0))
    assert facts["iqm"] == 4.0  # 1 and 7 are left out
    assert facts["ci95"] == (2.0, 6.0)  # the seeds' own means
    assert facts["returns"] == [[1.0, 3.0], [5.0, 7.0]]
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize("returns", [[-120.5], [[-120.5]], -120.5])
def test_summary_of_a_single_episode_is_finite(returns):
    facts = summary(returns)
    assert (facts["mean"], facts["std"], facts["iqm"]) == (-120.5, 0.0, -120.5)
    assert facts["ci95"] == (-120.5, -120.5)


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="no values"):
        summary([])
    with pytest.raises(ValueError, match="confidence"):
        stratified_bootstrap_interval([1.0, 2.0], confidence=95.0)
    with pytest.raises(ValueError, match="4 axes"):
        stratified_bootstrap_interval(np.zeros((1, 1, 1, 1)))
