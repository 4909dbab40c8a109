"""Draw the pictures of the documentation that show one short run: a repertoire, a report.

    python benchmarks/pictures.py repertoire    # results/repertoire.png
    python benchmarks/pictures.py report        # results/report.png, needs chromium

These runs show what the library draws. They are no measurements: each has a few seeds and few
steps, which the captions name.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

import understudy as us
from understudy.reports.report import report

RESULTS = Path(__file__).resolve().parent / "results"
WINDOW = (1100, 980)  # width and height of the picture of a page
COLORS = 128  # of a stored picture, so that it is small


def draw_repertoire() -> Path:
    """Draw the repertoire of a maze after 20,000 evaluations with seed 0."""
    config = us.PGAMEConfig(
        generation_size=64, cells=256, hidden_sizes=(32,), critic_steps=20, policy_steps=10
    )
    maze = us.PGAME("jax:PointNavigation-v0", config, seed=0)
    maze.illuminate(20_000, progress=False)
    path = RESULTS / "repertoire.png"
    maze.repertoire.draw(path, "PGA-ME in a maze, seed 0, 20,000 evaluations")
    return path


def draw_report() -> Path:
    """Draw the head of the report page of SAC on a pendulum, 20,000 steps with seeds 0 to 2."""
    path = RESULTS / "report.png"
    with tempfile.TemporaryDirectory() as directory:
        run, page = Path(directory) / "pendulum", Path(directory) / "report.html"
        agents = us.SAC("jax:Pendulum-v1", seed=0, num_seeds=3)
        agents.train(20_000, run_dir=run, progress=False)
        report(run, page)
        size = "--window-size={},{}".format(*WINDOW)
        browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", size]
        subprocess.run([*browser, f"--screenshot={path}", page.as_uri()], check=True)
    return path


def shrink(path: Path) -> None:
    """Store a picture with few colors."""
    Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", choices=("repertoire", "report"))
    picture = parser.parse_args().picture
    path = draw_repertoire() if picture == "repertoire" else draw_report()
    shrink(path)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
