import json
import sys
import types

import numpy as np
import pytest

from understudy.runs import loggers
from understudy.runs.loggers import MLflow, TensorBoard, WandB, open_loggers
from understudy.types import ConfigError

ABOUT = {
    "algorithm": "sac",
    "env": "Pendulum-v1",
    "seed": 3,
    "num_seeds": 2,
    "config": {"learning_rate": 3e-4, "hidden_sizes": (8, 8), "max_grad_norm": None, "n_step": 1},
}


def facts(step, reward=1.5):
    return {
        "time/total_steps": step,
        "eval/mean_reward": np.float32(reward),
        "eval/mean_reward_per_seed": [reward - 1, reward + 1],
        "note": "words are for the CSV file",
    }


def run_with(wanted, run_dir, steps, title="SAC on Pendulum-v1"):
    for logger in open_loggers(wanted, run_dir, ABOUT, title):
        with logger:
            for step in steps:
                logger(facts(step, reward=step / 10))


def read_back(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def curve(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_files_hold_every_number(tmp_path):
    run_with("tensorboard", tmp_path, [10, 20])
    events = read_back(tmp_path / "tensorboard")
    assert curve(events, "eval/mean_reward") == [(10, 1.0), (20, 2.0)]
    assert curve(events, "eval/mean_reward/seed1") == [(10, 2.0), (20, 3.0)]
    tags = {"eval/mean_reward", "eval/mean_reward/seed0", "eval/mean_reward/seed1"}
    assert set(events.Tags()["scalars"]) == tags


def test_a_resumed_run_goes_on_in_the_same_curves(tmp_path):
    run_with("tensorboard", tmp_path, [10, 20, 30])
    run_with("tensorboard", tmp_path, [20, 40])  # from the checkpoint at 10: 20 comes again
    events = read_back(tmp_path / "tensorboard")
    assert [step for step, _ in curve(events, "eval/mean_reward")] == [10, 20, 40]


def test_tensorboard_knows_the_settings(tmp_path):
    from tensorboard.plugins.hparams.metadata import PLUGIN_NAME, SESSION_START_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    run_with(TensorBoard(), tmp_path, [10])
    content = read_back(tmp_path / "tensorboard").PluginTagToContent(PLUGIN_NAME)
    stored = HParamsPluginData.FromString(content[SESSION_START_INFO_TAG])
    settings = stored.session_start_info.hparams
    assert settings["learning_rate"].number_value == 3e-4
    assert settings["hidden_sizes"].string_value == "8,8"
    assert settings["algorithm"].string_value == "sac"


def test_tensorboard_loads_neither_tensorflow_nor_torch():
    TensorBoard("somewhere")
    assert not {"tensorflow", "torch"} & set(sys.modules)


def test_a_directory_of_its_own_goes_before_the_run_directory(tmp_path):
    run_with(TensorBoard(tmp_path / "own"), tmp_path / "run", [10])
    run_with(TensorBoard(tmp_path / "own2"), None, [10])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "own2"]
    with pytest.raises(ConfigError, match="TensorBoard needs a place"):
        open_loggers("tensorboard", None, ABOUT, "")


def test_one_object_serves_run_after_run(tmp_path):
    logger = TensorBoard()
    for name in ("a", "b"):
        run_with(logger, tmp_path / name, [10])
    assert curve(read_back(tmp_path / "b" / "tensorboard"), "eval/mean_reward") == [(10, 1.0)]


class FakeWandB(types.ModuleType):
    """Remembers what it was asked, and hands out ids."""

    def __init__(self):
        super().__init__("wandb")
        self.inits, self.rows, self.ends, self.axes = [], [], [], []

    def init(self, **settings):
        self.inits.append(settings)
        return types.SimpleNamespace(
            id=settings["id"] or f"id{len(self.inits)}",
            log=self.rows.append,
            define_metric=lambda name, step_metric: self.axes.append((name, step_metric)),
            finish=lambda exit_code: self.ends.append(exit_code),
        )


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_gets_settings_rows_and_an_end(tmp_path, wandb):
    run_with(WandB(project="p", entity="e", mode="offline"), tmp_path, [10])
    (asked,) = wandb.inits
    wanted = {"project": "p", "entity": "e", "mode": "offline", "name": "SAC on Pendulum-v1"}
    assert wanted.items() <= asked.items()
    assert asked["dir"] == str(tmp_path) and asked["resume"] is None
    assert asked["config"]["learning_rate"] == 3e-4 and asked["config"]["env"] == "Pendulum-v1"
    assert wandb.axes == [("*", "time/total_steps")]
    assert wandb.rows == [
        {
            "time/total_steps": 10,
            "eval/mean_reward": 1.0,
            "eval/mean_reward/seed0": 0.0,
            "eval/mean_reward/seed1": 2.0,
        }
    ]
    assert wandb.ends == [0]


def test_wandb_continues_its_run_on_resume(tmp_path, wandb):
    run_with("wandb", tmp_path, [10])
    run_with("wandb", tmp_path, [20])
    run_with("wandb", tmp_path / "another", [20])
    first, resumed, _ = wandb.inits
    assert first["id"] is None
    assert (resumed["id"], resumed["resume"]) == ("id1", "allow")


def test_a_run_that_broke_is_marked(tmp_path, wandb, mlflow):
    for logger in open_loggers(["wandb", "mlflow"], tmp_path, ABOUT, ""):
        with pytest.raises(ZeroDivisionError), logger:
            raise ZeroDivisionError
    assert wandb.ends == [1]
    assert mlflow.states == [("run1", "FAILED")]


class FakeMLflow(types.ModuleType):
    def __init__(self):
        super().__init__("mlflow")
        self.experiments, self.runs, self.metrics, self.params, self.states = {}, [], [], [], []

    def MlflowClient(self, tracking_uri=None):
        self.tracking_uri = tracking_uri
        return self

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name):
        made = types.SimpleNamespace(experiment_id=f"experiment{len(self.experiments)}")
        self.experiments[name] = made
        return made.experiment_id

    def create_run(self, experiment_id, run_name=None):
        self.runs.append((experiment_id, run_name))
        info = types.SimpleNamespace(run_id=f"run{len(self.runs)}")
        return types.SimpleNamespace(info=info)

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000 and len(params) <= 100
        self.metrics += [(run_id, *metric) for metric in metrics]
        names = {name for _, name, *_ in self.metrics if "/" in name}
        # MLflow's file store makes a file of each name: none may be a directory of another.
        assert not [a for a in names for b in names if a.startswith(f"{b}/")]
        self.params += [(run_id, *param) for param in params]

    def update_run(self, run_id, status):
        self.states.append((run_id, status))

    def set_terminated(self, run_id, status):
        self.states.append((run_id, status))


@pytest.fixture
def mlflow(monkeypatch):
    fake = FakeMLflow()
    entities = types.ModuleType("mlflow.entities")
    entities.Metric = lambda key, value, timestamp, step: (key, value, step)
    entities.Param = lambda key, value: (key, value)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return fake


def test_mlflow_gets_settings_metrics_and_an_end(tmp_path, mlflow):
    run_with(MLflow(experiment="e", tracking_uri="sqlite:///x"), tmp_path, [10])
    assert mlflow.tracking_uri == "sqlite:///x"
    assert mlflow.runs == [("experiment0", "SAC on Pendulum-v1")]
    assert ("run1", "learning_rate", "0.0003") in mlflow.params
    assert mlflow.metrics == [
        ("run1", "eval/mean_reward", 1.0, 10),
        ("run1", "eval/mean_reward_seed0", 0.0, 10),
        ("run1", "eval/mean_reward_seed1", 2.0, 10),
    ]
    assert mlflow.states == [("run1", "FINISHED")]


def test_mlflow_gets_names_that_it_takes(mlflow):
    """One bad name would cost the whole row."""
    row = {"time/total_steps": 1, "info/x": 1.0, "info/x/y": 2.0, "eval/info/v (m/s)": 3.0}
    with MLflow() as logger:
        logger(row)
    names = [name for _, name, *_ in mlflow.metrics]
    assert names == ["info/x", "info/x.y", "eval/info/v _m.s_"]


def test_mlflow_continues_its_run_on_resume(tmp_path, mlflow):
    run_with("mlflow", tmp_path, [10])
    settings = list(mlflow.params)
    run_with("mlflow", tmp_path, [20])
    assert len(mlflow.runs) == 1 and mlflow.params == settings  # settings cannot be written twice
    assert mlflow.states == [("run1", "FINISHED"), ("run1", "RUNNING"), ("run1", "FINISHED")]
    assert [(run, step) for run, _, _, step in mlflow.metrics[::3]] == [("run1", 10), ("run1", 20)]


def test_many_metrics_go_in_parts(mlflow):
    (logger,) = open_loggers(
        "mlflow", None, ABOUT | {"config": {f"x{i}": i for i in range(250)}}, ""
    )
    with logger:
        logger({"time/total_steps": 1} | {f"x{i}": i for i in range(2500)})
    assert len(mlflow.metrics) == 2500 and len(mlflow.params) == 254


def test_several_at_once(tmp_path, wandb, mlflow):
    run_with(("tensorboard", "wandb", MLflow()), tmp_path, [10])
    assert json.loads((tmp_path / loggers.IDS).read_text()) == {"wandb": "id1", "mlflow": "run1"}
    assert curve(read_back(tmp_path / "tensorboard"), "eval/mean_reward") == [(10, 1.0)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loggers.json", "tensorboard"]


def test_none_is_none(tmp_path):
    assert open_loggers(None, tmp_path, ABOUT, "") == []
    assert open_loggers([], tmp_path, ABOUT, "") == []


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("tensorbord", r"unknown logger 'tensorbord' \(did you mean 'tensorboard'\?\); there are"),
        (["wandb!"], "did you mean 'wandb'"),
        (print, "cannot use .*print.* as a logger"),
        (TensorBoard, "cannot use .* as a logger"),
        (7, "cannot use 7 as a logger"),
    ],
)
def test_what_is_no_logger_is_refused(tmp_path, wanted, problem):
    with pytest.raises(ConfigError, match=problem):
        open_loggers(wanted, tmp_path, ABOUT, "")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_said_before_training(tmp_path, monkeypatch, name):
    for module in [name, *(m for m in sys.modules if m.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf'pip install "understudy\[{name}\]"'):
        open_loggers(name, tmp_path, ABOUT, "")
