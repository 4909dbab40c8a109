import base64
import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from understudy.algorithms import find
from understudy.errors import ConfigError, UnderstudyError
from understudy.reports import page as module
from understudy.reports.report import report
from understudy.runs.csv_log import CsvLog

SAC = find("sac").config_class
VOID = {"meta", "img", "br", "path", "use", "rect"}


class Page(HTMLParser):
    """The page as a browser reads it: texts by tag, all attributes, and whether tags match."""

    def __init__(self, path):
        super().__init__()
        self.open, self.texts, self.attributes = [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def of(self, tag):
        return [text for where, text in self.texts if where == tag and text]

    @property
    def tags(self):
        return {tag for tag, _, _ in self.attributes} | {tag for tag, _ in self.texts}


def write_run(folder, rows=3, num_seeds=1, facts=(), **about):
    folder.mkdir(parents=True, exist_ok=True)
    config = dataclasses.asdict(SAC(n_step=3, hidden_sizes=(400, 300)))
    said = {"understudy": "0.1.0", "algorithm": "sac", "env": "Pendulum-v1", "preset": "defaults"}
    said |= {"seed": 5, "num_seeds": num_seeds, "num_envs": 1, "config": config}
    (folder / "run.json").write_text(json.dumps(said | about))
    with CsvLog(folder / "progress.csv") as log:
        for row in range(rows):
            returns = [100.0 * row + seed for seed in range(num_seeds)]
            log.append(
                {
                    "time/total_steps": 1000 * (row + 1),
                    "rollout/ep_rew_mean": -5.0 + row,
                    "train/critic_loss": 7.5 - row,
                    "time/fps": 250.0,
                    "time/time_elapsed": 4.0 * (row + 1),
                    "eval/mean_reward": float(np.mean(returns)),
                    "eval/std_reward": 3.25,
                    **({"eval/mean_reward_per_seed": returns} if num_seeds > 1 else {}),
                    **dict(facts),
                }
            )
    return folder


def test_success_and_what_the_environment_reports(tmp_path):
    facts = {
        "rollout/success_rate": 0.25,
        "info/distance": 1.5,
        "eval/success_rate": 0.75,
        "eval/success_rate_per_seed": [0.5, 1.0],
        "eval/info/distance": 0.125,
        "eval/info/<b>": 3.0,
    }
    page = Page(report(write_run(tmp_path, num_seeds=2, facts=facts)))
    assert cards(page)["Success rate"] == "75%"
    heads, texts = page.of("th"), page.of("td")
    assert heads.count("success") == 1 and not any("distance" in head for head in heads)
    assert texts.count("75%") == 3 and "0.125" in texts and "<b>" in page.of("code")
    assert {"Success", "Numbers that the environment reports"} <= set(page.of("h2"))
    assert (
        "info/distance" in page.of("code") and "success rate over environment steps" in page.source
    )


def test_a_page_without_reports_of_the_environment(tmp_path):
    page = Page(report(write_run(tmp_path)))
    assert {"Success", "Numbers that the environment reports"}.isdisjoint(page.of("h2"))


def cards(page):
    return dict(re.findall(r"<div><p>(.*?)</p><strong>(.*?)</strong><p>.*?</p></div>", page.source))


def test_the_page_says_what_was_run_and_how_it_went(tmp_path):
    run = write_run(tmp_path / "run")
    out = report(run)
    assert out == run / "report.html"
    page = Page(out)
    assert page.of("h1") == page.of("title") == ["SAC on Pendulum-v1"]
    assert page.of("p")[0] == "3,000 steps · seed 5 · preset defaults · understudy 0.1.0"
    assert cards(page) == {
        "Last evaluation": "200.0",
        "Best evaluation": "200.0",
        "Time": "0:00:12",
        "Steps a second": "250",
    }
    assert "± 3.25 at step 3,000" in page.of("p")
    headings = ["Learning", "Evaluations", "Training in detail", "Settings", "Next commands"]
    assert page.of("h2") == headings
    assert page.of("pre")[0] == f"understudy resume {run} --steps 6000"
    assert sorted(p.name for p in run.iterdir()) == ["progress.csv", "report.html", "run.json"]


def test_several_seeds_have_an_interval_and_columns(tmp_path):
    page = Page(report(write_run(tmp_path, num_seeds=3)))
    assert cards(page)["IQM of 3 seeds"] == "201.0"
    assert "of their means; its 95 % interval 200.0 … 202.0" in page.of("p")
    assert page.of("th")[:6] == ["steps", "mean", "std", "seed 5", "seed 6", "seed 7"]
    assert page.of("td")[:6] == ["3,000", "201.0", "3.25", "200.0", "201.0", "202.0"]
    assert "3,000 steps each · seeds 5–7" in page.of("p")[0]


def test_many_seeds_and_evaluations_stay_readable(tmp_path):
    page = Page(report(write_run(tmp_path, rows=25, num_seeds=20)))
    assert page.of("th")[:3] == ["steps", "mean", "std"] and "seed 5" not in page.of("th")
    assert page.of("summary") == ["15 earlier ones"]
    assert page.source.count('title="the best"') == 1


def test_the_best_evaluation_is_not_always_the_last(tmp_path):
    write_run(tmp_path, rows=2)
    with CsvLog(tmp_path / "progress.csv") as log:
        log.append({"time/total_steps": 3000, "eval/mean_reward": 50.0, "eval/std_reward": 1.0})
    page = Page(report(tmp_path))
    assert cards(page)["Last evaluation"] == "50.0" and cards(page)["Best evaluation"] == "100.0"
    best = re.search(r'<tr class="marked" title="the best">(.*?)</tr>', page.source).group(1)
    assert best.startswith("<td>2,000</td><td>100.0</td>")


def test_settings_that_differ_from_the_defaults_are_marked(tmp_path):
    page = Page(report(write_run(tmp_path)))
    settings = page.source[page.source.index("<h2>Settings") :]
    marked = re.findall(r'<tr class="marked"><td><code>(\w+)', settings)
    assert sorted(marked) == ["hidden_sizes", "n_step"]
    assert "400 × 300" in page.of("td") and f"default {SAC().n_step}" in page.of("small")
    names = [field.name for field in dataclasses.fields(SAC)]
    assert set(names) <= set(page.of("code"))


def test_nothing_comes_from_the_network_or_runs(tmp_path):
    page = Page(report(write_run(tmp_path, num_seeds=2)))
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base"}
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("src", "href", "xlink:href", "action"):
            assert value.startswith(("#", "data:")), (tag, name, value)
    assert "url(http" not in page.source and "@import" not in page.source


def test_charts_take_the_colors_of_the_page(tmp_path):
    page = Page(report(write_run(tmp_path, num_seeds=2)))
    assert page.source.count("<svg") == 4  # learning, wide and narrow; two small ones
    assert "#0102" not in page.source
    assert "stroke: var(--blue)" in page.source and "stroke: var(--orange)" in page.source
    ids = [value for _, name, value in page.attributes if name == "id"]
    used = set(re.findall(r"url\(#(\w+)\)", page.source))
    assert used <= set(ids)
    assert "prefers-color-scheme: dark" in page.source


EVIL = '</title><script>alert(1)</script><img src=x onerror="alert(2)">\'&$\\frac{'


def test_text_from_files_stays_text(tmp_path):
    run = write_run(
        tmp_path / "a'<b>&\"",
        env=EVIL,
        algorithm=EVIL,
        preset=EVIL,
        understudy=EVIL,
        num_envs=EVIL,
        seed=EVIL,
        config={EVIL: EVIL, "hidden_sizes": [EVIL]},
        facts={f"train/{EVIL}": 1.0, f"eval/{EVIL}": EVIL, f"env/{EVIL}": 2.0}.items(),
    )
    page = Page(report(run))
    assert not page.tags & {"script", "b"}
    assert not [name for tag, name, _ in page.attributes if tag == "img" or name == "onerror"]
    assert page.of("h1") == [f"{EVIL.upper()} on {EVIL}"]
    for where in ("code", "td", "th"):
        assert [text for text in page.of(where) if EVIL in text], where


@pytest.mark.parametrize("rows", [0, 1])
def test_a_run_that_has_hardly_begun(tmp_path, rows):
    (tmp_path / "progress.csv").write_text("time/total_steps,rollout/ep_rew_mean\n" + "7,\n" * rows)
    page = Page(report(tmp_path))
    assert "No episode has ended yet." in page.of("p")
    assert page.of("h1") == [f"{tmp_path.name} on your environment"]


def test_a_run_without_evaluations_shows_its_training(tmp_path):
    with CsvLog(tmp_path / "progress.csv") as log:
        for step in (10, 20):
            log.append({"time/total_steps": step, "rollout/ep_rew_mean": step / 4})
    page = Page(report(tmp_path))
    assert cards(page) == {"Return in training": "5.00"}
    assert "Evaluations" not in page.of("h2")


def test_faults_are_counted_where_there_are_some(tmp_path):
    counts = {"train/discarded_updates": 3.0, "env/rebuilds": 2, "env/dropped_episodes": 0}
    page = Page(report(write_run(tmp_path, facts=counts.items())))
    section = re.search(r"<h2>Faults</h2>(.*?)</section>", page.source, re.DOTALL).group(1)
    rows = re.findall(r"<code>(.*?)</code></td><td>(.*?)</td>", section)
    assert rows == [("train/discarded_updates", "3"), ("env/rebuilds", "2")]


@pytest.mark.parametrize(("name", "tag"), [("film.mp4", "video"), ("film.GIF", "img")])
def test_a_video_is_inside(tmp_path, name, tag):
    film = tmp_path / name
    film.write_bytes(b"moving pictures")
    page = Page(report(write_run(tmp_path / "run"), tmp_path / "out" / "page.html", film))
    (source,) = [v for t, n, v in page.attributes if (t, n) == (tag, "src")]
    kind, _, data = source.partition(";base64,")
    assert kind == {"video": "data:video/mp4", "img": "data:image/gif"}[tag]
    assert base64.b64decode(data) == b"moving pictures"


def test_what_cannot_be_reported_is_said_in_one_line(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    (tmp_path / "film.avi").touch()
    (tmp_path / "big.mp4").write_bytes(b"12345678")
    monkeypatch.setattr(module, "MOST_VIDEO_BYTES", 4)
    for kind, problem, where, video in [
        (UnderstudyError, "nowhere is no run directory", tmp_path / "nowhere", None),
        (ConfigError, r"film\.avi: a video ends in", run, tmp_path / "film.avi"),
        (ConfigError, "no such video", run, tmp_path / "absent.mp4"),
        (ConfigError, r"big\.mp4 has .* MB", run, tmp_path / "big.mp4"),
    ]:
        with pytest.raises(kind, match=problem):
            report(where, tmp_path / "page.html", video)
        assert not (tmp_path / "page.html").exists()
