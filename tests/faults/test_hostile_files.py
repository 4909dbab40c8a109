"""Files that somebody else has made: nothing of theirs is executed, followed or believed."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import understudy as us
from tests.faults.hostile_cases import (
    GOOD,
    OWN,
    PAYLOAD,
    all_places,
    forge,
    forget,
    policy,
    sign,
    train,
)
from understudy import runner
from understudy.cli import main
from understudy.errors import CheckpointError, ConfigError
from understudy.reports.report import report
from understudy.runner import Node
from understudy.runs import checkpoint, files
from understudy.runs.csv_log import CsvLog
from understudy.runs.episode_log import EpisodeLog
from understudy.runs.files import lock_directory
from understudy.runs.loggers import add_id
from understudy.runs.policy_file import save_policy

pytestmark = pytest.mark.agents

REFUSED = r'import the module "payload".*import it first.*--env.*--trust-environment'


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return train(tmp_path_factory.mktemp("honest") / "run")


@pytest.fixture
def run(honest, tmp_path):
    return Path(shutil.copytree(honest, tmp_path / "run"))


@pytest.fixture
def forged(run, monkeypatch):
    """A run directory whose environment would import a module that lies in it and beside it; both
    places are on the path."""
    forge(run, env="payload:Evil-v0")
    for place in (run, run.parent):
        (place / "payload.py").write_text(PAYLOAD)
        monkeypatch.syspath_prepend(place)
    monkeypatch.chdir(run.parent)
    yield run
    assert "payload" not in sys.modules
    assert not list(run.parent.rglob("executed"))


def call(capsys, *words):
    """The exit code of a command, and what it says."""
    code = 0
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.fault(51, "us.load refuses a module that is not imported, and says how to allow it")
@pytest.mark.parametrize("load", [us.load, us.SAC.load], ids=["us.load", "SAC.load"])
def test_loading_imports_nothing(forged, load):
    for place in (forged, *all_places(forged)):
        with pytest.raises(CheckpointError, match=REFUSED):
            load(place)


@pytest.mark.fault(51, "all commands refuse it, too")
@pytest.mark.parametrize(
    "words",
    ["resume run", "resume run --steps 40", "eval run", "eval run --video film.gif",
     "eval run/best", "export run policy.safetensors", "report run --video film.gif"],
)  # fmt: skip
def test_commands_import_nothing(forged, capsys, words):
    code, _, err = call(capsys, *words.split())
    assert code == 2 and err.count("\n") == 1
    assert 'import the module "payload"' in err and "--trust-environment" in err


@pytest.mark.parametrize("words", ["plot run", "report run"])
def test_what_needs_no_environment_works(forged, capsys, words):
    assert call(capsys, *words.split())[0] == 0


@pytest.mark.fault(51, "the same for quality-diversity")
def test_a_repertoire_imports_nothing(tmp_path, capsys, monkeypatch):
    config = us.MAPElitesConfig(generation_size=4, grid=(2, 2), hidden_sizes=(4,))
    found = us.MAPElites("jax:PointNavigation-v0", config)
    found.illuminate(4, run_dir=tmp_path / "run", progress=False,
                     run=us.QDRunConfig(reevaluation_episodes=0))  # fmt: skip
    forge(tmp_path / "run", env="payload:Evil-v0")
    (tmp_path / "payload.py").write_text(PAYLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match=REFUSED):
        us.MAPElites.load(tmp_path / "run")
    for words in ("eval", "resume", "export"):
        more = ["policy.safetensors"] * (words == "export")
        code, _, err = call(capsys, words, tmp_path / "run", *more)
        assert code == 2 and 'import the module "payload"' in err
    assert not list(tmp_path.rglob("executed"))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A run on an environment that the user's own module registers; the module is not imported."""
    (tmp_path / "own_module.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    run = train(tmp_path / "run", "own_module:Own-v0")
    forget("own_module", "Own-v0")
    yield run
    forget("own_module", "Own-v0")


@pytest.mark.fault(51, "a run continues if its module is imported, given or trusted")
@pytest.mark.parametrize("how", ["imported", "env", "trusted"])
def test_an_honest_run_of_ones_own_environment_goes_on(own, how):
    with pytest.raises(CheckpointError, match='import the module "own_module"'):
        us.load(own)
    if how == "imported":
        __import__("own_module")
    ways = {"imported": {}, "env": {"env": "own_module:Own-v0"}}
    agent = us.load(own, **ways.get(how, {"trust_environment": True}))
    agent.train(5, progress=False)
    assert agent.steps == 25
    agent.close()


def test_an_honest_run_goes_on_in_a_terminal(own, capsys):
    code, out, _ = call(capsys, "resume", own, "--steps", 25, "--trust-environment", "--quiet")
    assert code == 0 and "going on at 20 of 25 steps" in out
    assert call(capsys, "eval", own, "--env", "own_module:Own", "--episodes", 1)[0] == 0


@pytest.mark.fault(51, "an import that raises gives an error of one line")
@pytest.mark.parametrize("body", ["1 / 0", "raise SystemExit(3)", "import nowhere_at_all", "("])
def test_an_import_that_raises_is_one_line(tmp_path, monkeypatch, body):
    (tmp_path / "broken_module.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(us.UnderstudyError, match="importing broken_module failed: ") as told:
        us.SAC("broken_module:Some-v0")
    assert "\n" not in str(told.value)
    sys.modules.pop("broken_module", None)


def test_a_name_calls_no_function_of_a_module():
    with pytest.raises(us.UnderstudyError, match='no environment "os:abort"'):
        us.SAC("os:abort")


# -- Ray ------------------------------------------------------------------------------------------


@pytest.mark.fault(52, "the address of a Ray comes from the user")
def test_an_address_in_a_file_is_not_used(run, capsys):
    cluster = {**us.Cluster(collectors=1).__dict__, "address": "192.0.2.1:6379"}
    forge(run, cluster=cluster)
    with pytest.raises(CheckpointError, match=r"Ray at '192\.0\.2\.1:6379'.*--address"):
        us.load(run)
    assert us.load(run, cluster=us.Cluster()).steps == 20
    code, _, err = call(capsys, "resume", run, "--steps", 40)
    assert code == 2 and "--address" in err
    assert call(capsys, "eval", run, "--episodes", 1)[0] == 0


# -- links ----------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "file").write_text("precious")
    yield place / "file"
    assert (place / "file").read_text() == "precious"
    assert os.listdir(place) == ["file"]


@pytest.mark.fault(53, "writing replaces a link and never follows it")
@pytest.mark.parametrize("name", ["report.html", ".report.html.tmp", "learning_curve.png"])
def test_a_report_follows_no_link(run, victim, name, capsys):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    report(run)
    assert call(capsys, "plot", run)[0] == 0
    assert not (run / "report.html").is_symlink()


@pytest.mark.parametrize("name", ["loggers.json", ".loggers.json.tmp"])
def test_the_names_of_trackers_follow_no_link(tmp_path, victim, name):
    (tmp_path / name).symlink_to(victim)
    if name == "loggers.json":
        victim.write_text("{}")
    add_id(tmp_path, "wandb", "x")
    assert json.loads((tmp_path / "loggers.json").read_text()) == {"wandb": "x"}
    if name == "loggers.json":
        assert victim.read_text() == "{}"
        victim.write_text("precious")


@pytest.mark.fault(53, "a log, a lock or a directory of checkpoints that is a link is refused")
def test_logs_locks_and_directories_follow_no_link(run, victim):
    (run / "other.csv").symlink_to(victim)
    with pytest.raises(ConfigError, match=r"other\.csv is a link"):
        CsvLog(run / "other.csv")
    with pytest.raises(ConfigError, match=r"other\.csv is a link"):
        EpisodeLog(run / "other.csv", 0)
    (run / "run.lock").symlink_to(victim)
    with pytest.raises(ConfigError, match=r"run\.lock is a link"), lock_directory(run):
        pass
    (run / "run.lock").unlink()
    shutil.move(run / "checkpoints", run.parent / "moved")
    (run / "checkpoints").symlink_to(run.parent / "moved")
    before = sorted(os.listdir(run.parent / "moved"))
    agent = us.load(run)
    with pytest.raises(ConfigError, match="checkpoints is a link"):
        agent.train(20, run_dir=run, progress=False)
    agent.close()
    checkpoint.prune(run, 1)
    checkpoint.tidy(run)
    assert sorted(os.listdir(run.parent / "moved")) == before


@pytest.mark.fault(53, "pruning never follows a link out of the run directory")
def test_pruning_leaves_what_is_elsewhere(run, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    [*_, newest] = checkpoint.numbered(other)
    (run / "checkpoints" / "000000000001").symlink_to(newest)
    checkpoint.prune(run, 1)
    checkpoint.tidy(run)
    assert us.load(other).steps == 20
    assert len(checkpoint.numbered(other)) == 2
    assert [place for place in checkpoint.numbered(run) if not place.is_symlink()] == [
        run / "checkpoints" / newest.name
    ]


def test_directories_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        place = checkpoint.write(tmp_path / "saved", {"learner": {"x": np.zeros(1)}}, {})
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o750
    assert (place / checkpoint.MANIFEST).stat().st_mode & 0o777 == 0o640


# -- kills ----------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.fault(54, "after a kill at any instant of removing, the next start removes the rest")
@pytest.mark.parametrize("deed", ["rename", "rmtree"])
def test_what_a_kill_leaves_of_a_checkpoint_is_removed_at_the_next_start(run, monkeypatch, deed):
    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files.os if deed == "rename" else files.shutil, deed, killed)
        checkpoint.prune(run, 1)
    checkpoint.tidy(run)
    assert us.load(run).steps == 20
    left = set(os.listdir(run / "checkpoints"))
    assert left == {place.name for place in checkpoint.numbered(run)}


def test_an_orphan_of_an_earlier_version_is_removed(run):
    [oldest, *_] = checkpoint.numbered(run)
    (oldest / checkpoint.MANIFEST).unlink()
    checkpoint.tidy(run)
    assert not oldest.exists()


# -- policy files ---------------------------------------------------------------------------------


DOUBLED = [
    Node("concat", (f"x{i}" if i else "observation",) * 2, f"x{i + 1}", {}) for i in range(41)
]
BOMBS = {
    "41 chained concatenations": policy([*DOUBLED, Node("tanh", ("x41",), "action", {})]),
    "an observation of 10¹² numbers": policy(GOOD, shape=(10**12,)),
    "a negative shape": policy(GOOD, shape=(-3,)),
    "a memory of 10¹² numbers": policy(GOOD, memory=10**12),
    "a border of 10⁶ pixels": policy(
        [Node("max_pool", ("observation",), "action", {"size": 10**6, "stride": 1})], (1, 1, 3)
    ),
    "a sum of a row and a column": policy(
        [Node("add", ("observation", "observation"), "action", {})], shape=(10**5, 10**5)
    ),
}


@pytest.mark.fault(55, "a graph is bounded by the arrays of its own file")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_policy_file_that_asks_for_more_than_it_holds(tmp_path, bomb):
    path = save_policy(tmp_path / "policy.safetensors", BOMBS[bomb])
    assert path.stat().st_size < 10_000
    with pytest.raises(CheckpointError, match="does not fit together"):
        runner.load(path)


def test_a_small_policy_is_not_refused(tmp_path):
    player = runner.load(save_policy(tmp_path / "policy.safetensors", policy(GOOD)))
    assert player.act(np.zeros(3)) == [1.0]


# -- manifests ------------------------------------------------------------------------------------


def deep():
    nested: list = []
    for _ in range(500):
        nested = [nested]
    return nested


WRONG = {
    "missing": {"spec": None}, "another type": {"config": []}, "a negative seed": {"seed": -1},
    "negative steps": {"position": {"iterations": -1}}, "nested": {"preset": deep()},
    "an unknown algorithm": {"algorithm": "sarsa"}, "no text": {"env": 7},
    "a number of seeds": {"num_seeds": 1e300}, "an unknown field": {"more": 1},
    "a wrong guard": {"guard": {"no": 1}}, "a wrong setting": {"config": {"gamma": 10**400}},
    "a wrong schedule": {"schedules": {"learning_rate": {"curve": "spiral"}}},
    "files": {"files": [1]}, "a file": {"files": {"learner.safetensors": {"bytes": -1}}},
    "a spec": {"spec": {"observation": {"shape": "wide"}, "action": {}}}, "draws": {"draws": "1"},
}  # fmt: skip


@pytest.mark.fault(
    56, "correct checksum but wrong content: one line, and the previous checkpoint is used"
)
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_manifest_gives_way_to_the_one_before(run, caplog, kind):
    [before, newest] = checkpoint.numbered(run)
    sign(newest, **WRONG[kind])
    assert us.load(run).steps == int(before.name)
    assert "going on from" in caplog.text
    with pytest.raises(CheckpointError) as told:
        us.load(newest)
    assert "\n" not in str(told.value) and len(str(told.value)) < 600


@pytest.mark.fault(56, "a pipe, a device or a huge file in place of a manifest is not read")
@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
@pytest.mark.parametrize("file", [checkpoint.MANIFEST, "learner.safetensors"])
def test_what_is_no_regular_file_is_not_read(run, kind, file):
    [before, newest] = checkpoint.numbered(run)
    path = newest / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as made:
            made.truncate(2**40)  # takes no room on the disk
    assert us.load(run).steps == int(before.name)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_policy_that_is_no_regular_file_is_not_read(tmp_path, kind):
    path = tmp_path / "policy.safetensors"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="no regular file"):
        runner.load(path)
