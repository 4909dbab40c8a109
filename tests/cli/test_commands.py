"""What a newcomer types, from the first training to a policy of one file."""

import contextlib
import functools
import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import understudy
from understudy.cli import playing
from understudy.runner import load as load_player

pytestmark = pytest.mark.agents


def listed(directory):
    return {path.name for path in directory.iterdir()}


def test_train_says_what_starts_and_ends_with_where_everything_is(trained):
    directory, out = trained
    lines = out.splitlines()
    preset = "Pendulum-v1 and your flags"
    assert lines[0] == f"TD3 on jax:Pendulum-v1, 60 steps, seeds 0–1, preset: {preset}"
    assert lines[1] == f"run directory   {directory}"
    assert lines[3].startswith("return over 2 episodes per seed: mean -")
    assert f"learning curve  {directory / 'learning_curve.png'}" in lines
    assert f"checkpoint      {directory / 'checkpoints' / '000000000060'}" in lines
    commands = " · ".join(f"understudy {word} {directory}" for word in ("eval", "plot", "report"))
    assert lines[-1] == f"next: {commands}"
    for line in lines[4:6]:
        assert Path(line.split()[-1]).exists()
    about = json.loads((directory / "run.json").read_text())
    assert about["preset"] == preset and about["num_seeds"] == 2
    assert about["config"]["hidden_sizes"] == [8]
    assert about["config"]["learning_rate"] == 1e-3  # the preset's, under the flags


def test_train_on_the_host_makes_a_directory(run, tmp_path, tiny):
    words = "--steps 40 --seed 3 --envs 2 --step-timeout 30 --keep-checkpoints 1"
    code, out, err = run("train", "sac", "Pendulum-v1", *words.split(), *tiny)
    assert code == 0 and err == ""
    [directory] = (tmp_path / "runs").iterdir()
    assert directory.name.startswith("sac-Pendulum-v1-")
    assert str(directory.relative_to(tmp_path)) in out
    about = json.loads((directory / "run.json").read_text())
    assert (about["seed"], about["num_envs"]) == (3, 2)
    assert about["guard"]["step_timeout"] == 30 and about["run_config"]["keep_checkpoints"] == 1


def interrupted(run, ringing, tiny, number=signal.SIGINT, *words):
    """A run of 120 steps that somebody ended after 70."""
    ringing.steps_to_go, ringing.signal = 70, number
    flags = ("--steps", 120, "--evaluate-every", 0, "--checkpoint-every", 50, *words)
    return run("train", "sac", "Ringing-v0", "--run", "my run", *flags, *tiny)


INTERRUPTED = "interrupted at 70 of 120 steps; go on with: understudy resume 'my run'\n"


def test_an_interruption_says_how_to_go_on(run, ringing, tiny):
    """By SIGTERM; the next test is interrupted by SIGINT."""
    code, out, err = interrupted(run, ringing, tiny, signal.SIGTERM)
    assert code == 143 and "learning curve" not in out and err == INTERRUPTED


@pytest.mark.slow
def test_resume_goes_on_as_if_nothing_had_happened(run, ringing, tiny, tmp_path):
    words = ("--logger", "tensorboard", "--device", "cpu")
    code, out, err = interrupted(run, ringing, tiny, signal.SIGINT, *words)
    assert code == 130 and "learning curve" not in out and err == INTERRUPTED
    code, out, err = run("resume", "my run", "--quiet")
    assert code == 0 and err == ""
    start, *_, end = out.splitlines()
    assert start.startswith("SAC on Ringing-v0, going on at 70 of 120 steps, preset: ")
    assert end.startswith("next: understudy eval 'my run' · ")
    about = json.loads(Path("my run/run.json").read_text())
    assert about["run_config"]["checkpoint_every"] == 50
    assert len(list(Path("my run/tensorboard").iterdir())) == 2  # it was opened twice
    flags = ("--steps", 120, "--evaluate-every", 0, "--run", "whole")
    assert run("train", "sac", "Ringing-v0", *flags, *tiny)[0] == 0
    returns = [run("eval", name, "--json", "--episodes", 3)[1] for name in ("my run", "whole")]
    assert returns[0] == returns[1]


def test_resume_of_a_finished_run_says_so(run, trained):
    directory, _ = trained
    before = sorted(directory.rglob("*"))
    for words in ([], ["--steps", "20"]):
        code, out, err = run("resume", directory, *words)
        assert code == 0 and err == ""
        assert f"{directory} is finished: 60 of {words[-1] if words else 60} steps" in out
        assert f"next: understudy resume {directory} --steps 120" in out
    assert sorted(directory.rglob("*")) == before


def test_resume_until_more_steps(run, ringing, tiny):
    run("train", "sac", "Ringing-v0", "--steps", "30", "--run", "more", *tiny)
    code, out, _ = run("resume", "more", "--steps", "50", "--quiet")
    assert code == 0 and "going on at 30 of 50 steps" in out
    assert json.loads(Path("more/run.json").read_text())["total_steps"] == 50


def test_an_interruption_before_the_first_step_leaves_nothing(run, tiny, tmp_path, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.agent.Agent.train", interrupt)
    code, _, err = run("train", "--run", "early", *tiny)
    assert (code, err) == (130, "interrupted before anything was saved\n")
    assert listed(tmp_path) == set()


def test_eval_prints_one_json_object(trained, run):
    directory, _ = trained
    code, out, err = run("eval", directory, "--episodes", "3", "--json")
    assert code == 0 and err == ""
    result = json.loads(out)
    assert list(result) == ["mean", "std", "iqm", "ci95", "returns"]
    assert np.shape(result["returns"]) == (2, 3) and len(result["ci95"]) == 2
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    newest = directory / "checkpoints" / "000000000060"
    assert run("eval", newest, "--episodes", "3", "--json")[1] == out


def test_eval_for_people(trained, run):
    directory, _ = trained
    for place in (directory, directory / "best"):
        code, out, _ = run("eval", place, "--episodes", "2")
        lines = out.splitlines()
        assert code == 0 and lines[0] == "TD3 on jax:Pendulum-v1 after 60 steps, seeds 0–1"
        assert (
            lines[1].startswith("return over 2 episodes per seed: mean -")
            and "IQM of the 2 seeds" in lines[1]
        )
        assert [line.split(":")[0] for line in lines[2:4]] == ["  seed 0", "  seed 1"]
        assert lines[-1].endswith(f"understudy export {place} policy.onnx")


@pytest.mark.slow
def test_a_video_alone_and_in_a_report(run, trained, tmp_path, monkeypatch):
    short = functools.partial(playing.record_episode, max_steps=10)  # drawing takes long
    monkeypatch.setattr(playing, "record_episode", short)
    directory, _ = trained
    code, out, err = run("eval", directory, "--episodes", "1", "--video", "films/e.gif")
    assert code == 0 and err == ""
    assert "video           films/e.gif (an episode with return -" in out
    assert f"next: understudy report {directory} --video films/e.gif · " in out
    assert (tmp_path / "films" / "e.gif").read_bytes().startswith(b"GIF")
    for film in ("films/e.gif", "new.gif"):  # one that is there, one that is not
        code, out, _ = run("report", directory, "--video", film, "-o", "page.html")
        assert code == 0 and "report          page.html" in out
        assert ("video  " in out) == (film == "new.gif")
        assert "data:image/gif;base64" in (tmp_path / "page.html").read_text()


def test_plot_and_report(trained, run, tmp_path):
    directory, _ = trained
    for words, path in (
        (["plot", directory], directory / "learning_curve.png"),
        (["plot", directory, "-o", "one.svg"], Path("one.svg")),
        (["plot", directory, directory], Path("comparison.png")),
        (["report", directory], directory / "report.html"),
    ):
        path.unlink(missing_ok=True)
        code, out, err = run(*words)
        first, last = out.splitlines()
        assert code == 0 and err == "" and str(path) in first and path.exists()
        assert last.startswith("next: understudy ")


@pytest.mark.parametrize(
    ("name", "place", "words", "which"),
    [
        ("policy.safetensors", ".", [], "last"),
        ("policy.onnx", ".", [], "last"),
        ("policy.safetensors", ".", ["--which", "best"], "best"),
        ("policy.safetensors", "best", [], "best"),
    ],
)
def test_export(trained, run, tmp_path, name, place, words, which):
    code, out, err = run("export", trained[0] / place, name, *words)
    first, last = out.splitlines()
    assert code == 0 and err == ""
    which = rf"the {which} policy: step 60, seed [01], mean return -[\d,.]+"
    assert re.fullmatch(rf"policy +{re.escape(name)} \(TD3 on jax:Pendulum-v1, {which}\)", first)
    assert f'("{name}")' in last
    observation = np.ones(3, np.float32)
    with contextlib.closing(understudy.load(trained[0])) as agent:
        expected = agent.act(observation)
    if name.endswith("onnx"):
        session = pytest.importorskip("onnxruntime").InferenceSession(name)
        found = session.run(["action"], {"observation": observation[None]})[0][0]
    else:
        found = load_player(name).act(observation)
    assert np.allclose(found, expected, atol=1e-4)
