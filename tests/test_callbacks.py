"""The callbacks that are ready to use."""

import sys
from types import SimpleNamespace

import pytest

import understudy as us
from understudy.callbacks import Curriculum, EarlyStopping, Episode, StopAtReturn, WandbArtifacts
from understudy.types import CheckpointError, ConfigError


def evaluations(callback, scores):
    """How many evaluations it takes until the callback ends training."""
    for count, score in enumerate(scores, start=1):
        if callback.on_evaluation(None, {"eval/mean_reward": score}):
            return count
    return None


@pytest.mark.parametrize(
    ("arguments", "scores", "count"),
    [
        ((2,), [1, 2, 2, 1], 4),
        ((2,), [1, 2, 1, 3, 2], None),
        ((2, 1.0), [0, 1, 1.5, 1], None),  # 1 is not more than 1 above 0; 1.5 is
        ((2, 1.0), [0, 1, 1], 3),
        ((1,), [float("nan")], 1),
    ],
)
def test_early_stopping(arguments, scores, count):
    assert evaluations(EarlyStopping(*arguments), scores) == count


def test_early_stopping_goes_on_where_it_was():
    whole, first, second = EarlyStopping(3), EarlyStopping(3), EarlyStopping(3)
    scores = [5, 4, 4, 4]
    assert evaluations(whole, scores) == 4
    assert evaluations(first, scores[:3]) is None
    second.load_state_dict(first.state_dict())
    assert evaluations(second, scores[3:]) == 1
    with pytest.raises(CheckpointError, match=r"state of EarlyStopping is damaged: best is 'x'"):
        second.load_state_dict({"best": "x", "waited": 0})


def test_stop_at_return():
    assert evaluations(StopAtReturn(10), [9, 9.9, 10, 11]) == 3
    assert evaluations(StopAtReturn(10), [float("nan"), 9]) is None


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: EarlyStopping(0), "patience must be at least 1"),
        (lambda: EarlyStopping(2, -1.0), "min_delta must be at least 0"),
        (lambda: StopAtReturn("high"), "threshold must be a finite number, got 'high'"),
        (lambda: Curriculum("a", [1], 0.0), "at least two values"),
        (lambda: Curriculum("a", 3, 0.0), "at least two values"),
        (lambda: Curriculum("a", [1, 2], "x"), "threshold must be a finite number"),
        (lambda: Curriculum("a", [1, 2], 0.0, window=0), "window must be at least 1"),
        (lambda: Curriculum("a", [1, 2], 0.0, metric="reward"), 'metric must be "return" or'),
        (lambda: WandbArtifacts(best=False, last=False), "would upload nothing"),
    ],
)
def test_wrong_arguments(make, problem):
    with pytest.raises(ConfigError, match=problem):
        make()


class Envs:
    """An agent that notes what its environments are set to, and what is logged."""

    def __init__(self):
        self.set, self.logged = [], []
        self.envs = SimpleNamespace(set_attr=lambda *change: self.set.append(change))

    def log(self, name, value):
        self.logged.append((name, value))


def play(callback, agent, results, key="total_reward"):
    for result in results:
        info = {"success": result} if key == "success" else {}
        callback.on_episode(agent, Episode(0, float(result), 1, info=info))


def test_a_curriculum_is_raised_by_the_mean_of_a_window():
    agent, one = Envs(), Curriculum("size", [1, 2, 4], threshold=5.0, window=2)
    one.on_train_start(agent)
    assert agent.set == [("size", 1)]
    play(one, agent, [9, 0, 9])  # means of 4.5
    assert one.level == 0
    play(one, agent, [1])  # 5.0
    assert agent.set[1:] == [("size", 2)]
    play(one, agent, [9])  # the window begins anew
    assert one.level == 1
    play(one, agent, [9, 9, 9, 9])
    assert one.level == 2 and agent.set == [("size", 1), ("size", 2), ("size", 4)]
    one.on_log(agent, {})
    assert [value for _, value in agent.logged] == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    one.on_train_start(agent)  # a second training goes on with its level
    assert len(agent.set) == 3


def test_a_curriculum_by_success_goes_on_where_it_was():
    first, second = (Curriculum("size", [1, 2], 0.5, 4, "success") for _ in range(2))
    agent, other = Envs(), Envs()
    first.on_train_start(agent)
    play(first, agent, [0, 1, 0], "success")
    second.load_state_dict(first.state_dict())
    second.on_train_start(other)
    play(second, other, [1], "success")
    assert other.set == [("size", 2)]
    with pytest.raises(ConfigError, match='needs environments whose info has "success"'):
        play(second, other, [1])
    with pytest.raises(CheckpointError, match="state of Curriculum is damaged: level is 2"):
        second.load_state_dict({"level": 2, "results": []})


@pytest.fixture
def wandb(monkeypatch):
    """A module like W&B's, with an open run, that notes what was uploaded."""
    uploads = []

    class Artifact:
        def __init__(self, name, type, metadata):
            self.name, self.type, self.metadata, self.files = name, type, metadata, []

        def add_dir(self, path):
            self.files.append(path)

    def log_artifact(artifact, aliases):
        uploads.append((artifact.name, artifact.type, artifact.metadata, artifact.files, aliases))

    run = SimpleNamespace(id="r1", log_artifact=log_artifact)
    fake = SimpleNamespace(run=run, Artifact=Artifact, uploads=uploads)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


AGENT = SimpleNamespace(steps=40)


def tell(callback, path):
    callback.on_checkpoint(AGENT, path / "best")
    callback.on_checkpoint(AGENT, path / "000000000020")
    callback.on_checkpoint(AGENT, path / "000000000040")
    callback.on_train_end(AGENT)


def test_artifacts_of_wandb(wandb, tmp_path):
    tell(WandbArtifacts(), tmp_path)
    about = ("checkpoint-r1", "model", {"steps": 40})
    assert wandb.uploads == [
        (*about, [str(tmp_path / "best")], ["best", "step-40"]),
        (*about, [str(tmp_path / "000000000040")], ["last", "step-40"]),
    ]
    wandb.uploads.clear()
    tell(WandbArtifacts(last=False, name="mine"), tmp_path)
    assert [(name, aliases[0]) for name, *_, aliases in wandb.uploads] == [("mine", "best")]
    wandb.uploads.clear()
    one, illumination = WandbArtifacts(), SimpleNamespace(evaluations=512)
    one.on_checkpoint(illumination, tmp_path / "000000000512")
    one.on_train_end(illumination)
    assert [aliases for *_, aliases in wandb.uploads] == [["last", "step-512"]]


@pytest.mark.fault(35, "an upload that fails, or has no run, costs one warning")
def test_an_upload_that_fails(wandb, tmp_path, caplog):
    def fail(artifact, aliases):
        raise OSError("no network")

    wandb.run.log_artifact = fail
    tell(WandbArtifacts(), tmp_path)
    wandb.run = None
    tell(WandbArtifacts(), tmp_path)
    WandbArtifacts().on_train_end(AGENT)
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        "no network",
        'no W&B run is open: give train(logger="wandb")',
        "give train(run_dir=…) for checkpoints",
    ]


def test_the_names_are_public():
    assert us.callbacks.EarlyStopping is EarlyStopping
    assert issubclass(EarlyStopping, us.Callback)
