"""The pictures that a run draws when it ends.

Matplotlib takes half a second to import, so it is imported only when there is something to draw."""

from pathlib import Path

from understudy.runs.run_directory import CURVE


def draw_learning_curve(directory: Path, title: str) -> None:
    """The returns of a training, into its run directory."""
    from understudy.reports.curves import learning_curve

    learning_curve(directory, directory / CURVE, title)


def draw_growth(directory: Path) -> None:
    """How a repertoire has grown, into its run directory."""
    from understudy.reports.growth import growth

    growth([directory], directory / CURVE)
