"""Scores of quality-diversity."""

import math

from measured.files import column, median, number, rows, significant

COMPARED = "qd_compare_{}_PointNavigation-v0"
METRICS = ("qd_score", "coverage", "max_fitness")


def _last(file: str, metric: str) -> list[float]:
    """Return the metric after the last evaluation, in the order of the seeds."""
    found = [row for row in rows(file) if row[metric]]
    last = max(int(row["evaluations"]) for row in found)
    return [float(row[metric]) for row in found if int(row["evaluations"]) == last]


def median_and_seeds(file: str, metric: str = "qd_score") -> str:
    """Write the median, and every seed in brackets."""
    found = _last(file, metric)
    return f"{_whole(median(found))} ({', '.join(map(_whole, found))})"


def median_of(file: str, metric: str) -> str:
    return _whole(median(_last(file, metric)))


def filled_share(file: str, metric: str) -> str:
    """Write the share of filled cells."""
    return f"{100 * median(_last(file, metric)):.0f} %"


def seconds(file: str) -> str:
    return _whole(max(column(file, "seconds")))


def _whole(value: float) -> str:
    """Write a score without decimals; a half is rounded up."""
    return number(math.floor(value + 0.5), 0)


def compared(setting: str, library: str, digits: str = "1") -> str:
    """Write the medians of QD-score, coverage and best fitness in a comparison with QDax."""
    score, coverage, fitness = (
        median(column(COMPARED.format(setting), metric, library=library)) for metric in METRICS
    )
    return f"{_whole(score)} / {coverage:.3f} / {number(fitness, digits)}"


def _evaluations_per_second(setting: str, library: str, generation: str) -> float:
    found = column(COMPARED.format(setting), "seconds", library=library)
    return int(generation) / median(found)


def speed(setting: str, library: str, generation: str) -> str:
    """Write evaluations per second for a size of generation."""
    return significant(_evaluations_per_second(setting, library, generation))


def speed_ratio(setting: str, generation: str) -> str:
    """Write Understudy's evaluations per second divided by QDax's."""
    ours, theirs = (
        _evaluations_per_second(setting, name, generation) for name in ("understudy", "qdax")
    )
    return f"{ours / theirs:.2f}×"
