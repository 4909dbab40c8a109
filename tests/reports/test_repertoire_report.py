import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.errors import CheckpointError
from understudy.qd.repertoire import add, empty
from understudy.qd.snapshot import pack
from understudy.qd.tessellation import make_cvt, make_grid
from understudy.reports.repertoire_report import read_map
from understudy.reports.report import report
from understudy.runs import checkpoint
from understudy.runs.csv_log import CsvLog
from understudy.state_dict import add_prefix

LOW, HIGH, NAMES = (0.0, -2.0), (1.0, 2.0), ("left foot", "right foot")
CVT = make_cvt(20, LOW, HIGH, samples=500)
add_all = jax.jit(add)
EVIL = '</title><script>alert(1)</script><img src=x onerror="alert(2)">'
DESCRIPTORS = [[0.1, -1.9], [0.9, 1.9], [0.5, 0.0]]
FITNESS = [1.5, 3.25, -2.0]


def grown(cells):
    policies = {"weight": jnp.arange(6.0).reshape(3, 2)}
    template = {"weight": jnp.zeros(2)}
    born = jnp.arange(3, dtype=jnp.int32)
    numbers = jnp.array(FITNESS), jnp.array(DESCRIPTORS)
    return add_all(empty(cells, template), policies, *numbers, born)[0]


def write_run(folder, grid=None, repertoire=None, facts=(), **about):
    cells = CVT if grid is None else make_grid(grid, LOW, HIGH)
    said = {
        "algorithm": "pga-me", "env": "Walker2d-v5", "preset": "defaults", "seed": 7,
        "descriptor": "feet", "understudy": "0.1.0", "config": {"cells": 20, "grid": grid},
        "run_config": {"reevaluation_episodes": 4},
        "described_by": {"low": LOW, "high": HIGH, "over": "mean", "names": NAMES},
    }  # fmt: skip
    said |= about
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(said))
    found = grown(cells) if repertoire is None else repertoire(cells)
    world = add_prefix("repertoire", pack(found)) | {"rest.offset": np.float32(-5)}
    checkpoint.write(checkpoint.place_of(folder, 300), {"learner": {}, "world": world}, said)
    with CsvLog(folder / "progress.csv") as log:
        for row in range(3):
            log.append(
                {
                    "time/total_steps": 1000 * (row + 1), "time/evaluations": 100 * (row + 1),
                    "time/time_elapsed": 5.0 * (row + 1), "qd/qd_score": 4.0 + row,
                    "qd/coverage": 0.05 * (row + 1), "qd/max_fitness": 3.25,
                    "qd/score_offset": -5.0, "train/critic_loss": 0.5, **dict(facts),
                }
            )  # fmt: skip
        corrected = {"qd_score": 5.5, "coverage": 0.1, "max_fitness": 3.0}
        times = {"time/total_steps": 3000, "time/evaluations": 300}
        log.append(times | {f"qd/corrected_{name}": value for name, value in corrected.items()})
    return folder


def cards(html):
    return dict(re.findall(r"<div><p>(.*?)</p><strong>(.*?)</strong><p>.*?</p></div>", html))


@pytest.mark.parametrize("grid", [None, [5, 4]], ids=["cvt", "grid"])
def test_a_map_needs_no_policies(tmp_path, grid):
    found, names = read_map(write_run(tmp_path / "run", grid))
    assert names == NAMES and found.policies == () and found.cells.count == 20
    whole = grown(found.cells)
    for part in ("fitness", "descriptor", "born"):
        np.testing.assert_array_equal(getattr(found, part), getattr(whole, part))


def test_another_checkpoint_is_no_map(tmp_path):
    groups = {"learner": {"weight": np.ones(2)}}
    checkpoint.write(tmp_path / "agent", groups, {"algorithm": "sac", "config": {}})
    with pytest.raises(CheckpointError, match="no checkpoint of a repertoire"):
        read_map(tmp_path / "agent")


@pytest.mark.parametrize("grid", [None, [5, 4]], ids=["cvt", "grid"])
def test_the_page_says_what_was_found(tmp_path, grid):
    run = write_run(tmp_path / "run", grid)
    out = report(run)
    assert out == run / "report.html"
    html = out.read_text()
    assert "<h1>PGA-ME on Walker2d-v5</h1>" in html
    assert "300 evaluations · seed 7 · descriptor feet · preset defaults" in html
    assert cards(html) == {
        "QD-score": "6.00",
        "Coverage": "15.0%",
        "Best fitness": "3.25",
        "Corrected QD-score": "5.50",
        "Corrected coverage": "10.0%",
        "Corrected best": "3.00",
        "Time": "0:00:15",
        "Evaluations a second": "20",
    }
    assert "above -5.00" in html and "4 fresh episodes each" in html
    headings = ["The map", "Growth, over evaluations", "Best and extreme policies"]
    headings += ["In detail, over evaluations", "Settings", "Next commands"]
    assert re.findall(r"<h2>(.*?)</h2>", html) == headings
    assert f"understudy resume {run} --evaluations 600" in html
    assert f"understudy export {run} policy.onnx --at 0.9,1.9" in html


def test_every_filled_cell_can_be_clicked(tmp_path):
    html = report(write_run(tmp_path / "run")).read_text()
    rows = set(re.findall(r'<tr id="(cell-\d+)">', html))
    assert len(rows) == len(FITNESS)
    assert set(re.findall(r'<a href="#(cell-\d+)">', html)) == rows


def test_the_fittest_come_first_then_the_ends(tmp_path):
    html = report(write_run(tmp_path / "run")).read_text()
    section = re.search(
        r"<h2>Best and extreme policies</h2>(.*?)</section>", html, re.DOTALL
    ).group(1)
    rows = re.findall(r"<td>([^<]+)</td><td>([^<]+)</td><td>([^<]+)</td><td>([^<]+)</td>", section)
    assert rows == [
        ("1", "3.25", "0.9", "1.9"),
        ("2", "1.50", "0.1", "-1.9"),
        ("3", "-2.00", "0.5", "0"),
        ("least left foot", "1.50", "0.1", "-1.9"),
        ("most left foot", "3.25", "0.9", "1.9"),
        ("least right foot", "1.50", "0.1", "-1.9"),
        ("most right foot", "3.25", "0.9", "1.9"),
    ]
    assert section.count('class="marked"') == 3  # wherever the fittest stands


def test_nothing_comes_from_the_network_or_runs(tmp_path):
    bounds = {"low": LOW, "high": HIGH, "names": [EVIL, EVIL]}
    words = dict.fromkeys(("env", "preset", "descriptor", "understudy"), EVIL)
    run = write_run(tmp_path / "a'<b>&", described_by=bounds, **words)
    html = report(run).read_text()
    assert "<script" not in html and "<img" not in html and "<b>" not in html
    assert "@import" not in html and "url(http" not in html
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert links and all(link.startswith("#") for link in links)


def test_a_run_without_a_checkpoint_has_no_map(tmp_path):
    run = write_run(tmp_path / "run")
    for file in checkpoint.place_of(run, 300).iterdir():
        file.unlink()
    html = report(run, tmp_path / "out" / "page.html").read_text()
    assert (
        "There is no map: there is no checkpoint in" in html
        and "Best and extreme policies" not in html
    )
    assert cards(html)["QD-score"] == "6.00"


def test_an_empty_repertoire(tmp_path):
    run = write_run(tmp_path / "run", repertoire=lambda cells: empty(cells, jnp.zeros(2)))
    html = report(run).read_text()
    assert "No policy yet." in html and "--at" not in html


def test_faults_are_counted_where_there_are_some(tmp_path):
    counts = {"qd/not_finite": 3, "qd/clipped": 2, "env/rebuilds": 0}
    html = report(write_run(tmp_path / "run", facts=counts.items())).read_text()
    section = re.search(r"<h2>Faults</h2>(.*?)</section>", html, re.DOTALL).group(1)
    rows = re.findall(r"<code>(.*?)</code></td><td>(.*?)</td>", section)
    assert rows == [("qd/not_finite", "3"), ("qd/clipped", "2")]
