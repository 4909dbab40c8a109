"""Where a run's facts can go beside its CSV file: TensorBoard, Weights & Biases, MLflow.

A logger is a context manager that is called with facts. It may break (a network, a disk) without
taking training with it: `Guarded` turns its failures into one warning. The x-axis is always
`time/total_steps`; lists of one value per seed become one curve per seed.
"""

import importlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from understudy.algorithms.config import nearest
from understudy.errors import ConfigError
from understudy.runs.csv_log import STEPS, flatten
from understudy.runs.files import refuse_link, write_whole

IDS = "loggers.json"  # in the run directory: which run of a tracker is continued on resume
FAILURES_IN_A_ROW = 3  # a tracker that is down may take minutes to say so, at every log

_log = logging.getLogger("understudy.runs")


@runtime_checkable
class Logger(Protocol):
    """What `logger=` takes: told once which run it is, then entered, called, left."""

    def attach(self, run_dir: Path | None, about: dict[str, Any], title: str) -> None: ...

    def __enter__(self) -> Any: ...

    def __call__(self, facts: Mapping[str, Any]) -> None: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...


@final
class TensorBoard:
    """Event files in `directory`, or in `tensorboard/` of the run directory.

    A resumed run continues in the same place; what it had logged beyond its checkpoint is
    superseded.
    """

    def __init__(self, directory: Path | str | None = None):
        inside = {
            name: _need(f"tensorboard.{name}", "tensorboard")
            for name in (
                "compat.proto.event_pb2",
                "compat.proto.summary_pb2",
                "plugins.hparams.summary_v2",
                "summary.writer.event_file_writer",
            )
        }
        self._events, self._summaries, self._hparams, self._files = inside.values()
        self.directory = None if directory is None else Path(directory)
        self._place, self._about = self.directory, {}

    def attach(self, run_dir: Path | None, about: dict[str, Any], title: str) -> None:
        self._place = self.directory or (run_dir and run_dir / "tensorboard")
        self._about = about
        if self._place is None:
            raise ConfigError("TensorBoard needs a place: give run_dir, or TensorBoard(directory)")

    def __enter__(self) -> "TensorBoard":
        if self._place is None:
            raise ConfigError("TensorBoard needs a place: TensorBoard(directory)")
        refuse_link(self._place)
        self._writer = self._files.EventFileWriter(str(self._place))
        self._begun = False
        return self

    def __call__(self, facts: Mapping[str, Any]) -> None:
        step = int(facts[STEPS])
        if not self._begun:
            self._begin(step)
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in _numbers(facts).items()
        ]
        self._write(step, summary=self._summaries.Summary(value=values))
        self._writer.flush()  # a crash loses nothing that was logged

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._writer.close()

    def _begin(self, step: int) -> None:
        # Readers drop what earlier files hold from this step on: the run went back to it.
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(step, session_log=start)
        if settings := hyper_parameters(self._about):
            score = self._hparams.Metric("eval/mean_reward")
            self._write(0, summary=self._hparams.hparams_config_pb([], [score]))
            self._write(0, summary=self._hparams.hparams_pb(settings, trial_id=str(self._place)))
        self._begun = True

    def _write(self, step: int, summary: Any = None, session_log: Any = None) -> None:
        now = time.time()
        self._writer.add_event(
            self._events.Event(step=step, wall_time=now, summary=summary, session_log=session_log)
        )


@final
class WandB:
    """A run of Weights & Biases. `mode` is "online", "offline" or "disabled"."""

    def __init__(
        self, project: str = "understudy", entity: str | None = None, mode: str | None = None
    ):
        self._wandb = _need("wandb", "wandb")
        self.project, self.entity, self.mode = project, entity, mode
        self._ids, self._about, self._title = _Ids(None), {}, None

    def attach(self, run_dir: Path | None, about: dict[str, Any], title: str) -> None:
        self._ids, self._about, self._title = _Ids(run_dir), about, title

    def __enter__(self) -> "WandB":
        known = self._ids.get("wandb")
        self._run = self._wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            name=self._title,
            dir=self._ids.directory,
            config=hyper_parameters(self._about),
            id=known,
            resume="allow" if known else None,
            allow_val_change=True if known else None,
        )
        self._ids.set("wandb", self._run.id)
        # Not W&B's own step: it may not go back, and a run resumed from an older checkpoint does.
        self._run.define_metric("*", step_metric=STEPS)
        return self

    def __call__(self, facts: Mapping[str, Any]) -> None:
        self._run.log({STEPS: int(facts[STEPS]), **_numbers(facts)})

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._run.finish(exit_code=int(kind is not None))


@final
class MLflow:
    """A run of MLflow, in `experiment` of `tracking_uri` (MLflow's own default where None)."""

    def __init__(self, experiment: str = "understudy", tracking_uri: str | None = None):
        self._mlflow = _need("mlflow", "mlflow")
        self._entities = _need("mlflow.entities", "mlflow")
        self.experiment, self.tracking_uri = experiment, tracking_uri
        self._ids, self._about, self._title = _Ids(None), {}, None

    def attach(self, run_dir: Path | None, about: dict[str, Any], title: str) -> None:
        self._ids, self._about, self._title = _Ids(run_dir), about, title

    def __enter__(self) -> "MLflow":
        self._client = self._mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        self._run_id = self._ids.get("mlflow")
        if self._run_id:
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._run_id = self._begin()
            self._ids.set("mlflow", self._run_id)
        return self

    def __call__(self, facts: Mapping[str, Any]) -> None:
        step, now = int(facts[STEPS]), int(time.time() * 1000)
        metrics = [
            # A file store cannot hold x/seed0 beside x: a directory where a file is.
            self._entities.Metric(re.sub(r"/(seed\d+)$", r"_\1", name), value, now, step)
            for name, value in _numbers(facts).items()
        ]
        for part in _parts(metrics, 1000):  # the most that a server takes at once
            self._client.log_batch(self._run_id, metrics=part)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if kind else "FINISHED")

    def _begin(self) -> str:
        experiment = self._client.get_experiment_by_name(self.experiment)
        experiment_id = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(self.experiment)
        )
        run_id = self._client.create_run(experiment_id, run_name=self._title).info.run_id
        params = [
            self._entities.Param(name, str(value))
            for name, value in hyper_parameters(self._about).items()
        ]
        for part in _parts(params, 100):
            self._client.log_batch(run_id, params=part)
        return run_id


@final
class Guarded:
    """A logger whose failures cost one warning, and never the run."""

    def __init__(self, logger: Logger):
        self.logger = logger
        self._warned = self._open = False
        self._failures = 0  # in a row

    def attach(self, run_dir: Path | None, about: dict[str, Any], title: str) -> None:
        self.logger.attach(run_dir, about, title)

    def __enter__(self) -> "Guarded":
        self._open = self._try("opened", self.logger.__enter__)
        return self

    def __call__(self, facts: Mapping[str, Any]) -> None:
        if not self._open or self._failures >= FAILURES_IN_A_ROW:
            return
        if self._try("written to", lambda: self.logger(facts)):
            self._failures = 0
        else:
            self._failures += 1

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._open:
            self._try("closed", lambda: self.logger.__exit__(kind, error, traceback))
            self._open = False

    def _try(self, what: str, action: Callable[[], Any]) -> bool:
        try:
            action()
            return True
        except Exception as error:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "%s could not be %s (%s: %s); training continues without it",
                    type(self.logger).__name__,
                    what,
                    type(error).__name__,
                    " ".join(str(error).split()),
                )
            return False


BY_NAME: dict[str, Callable[[], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def open_loggers(
    wanted: Any, run_dir: Path | None, about: dict[str, Any], title: str
) -> list[Logger]:
    """The loggers asked for, by name or as objects, one or several: each guarded, told which run
    it is for, and ready to be entered. Mistakes and missing packages are errors here, at once."""
    if wanted is None:
        return []
    items = (
        list(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
    )
    loggers: list[Logger] = [Guarded(_logger(item)) for item in items]
    for logger in loggers:
        logger.attach(run_dir, about, title)
    return loggers


def _logger(item: Any) -> Logger:
    if isinstance(item, str):
        if item not in BY_NAME:
            known = ", ".join(BY_NAME)
            raise ConfigError(
                f"unknown logger '{item}'{nearest(item, BY_NAME)}; there are: {known}"
            )
        return BY_NAME[item]()
    if not isinstance(item, Logger) or isinstance(item, type):
        raise ConfigError(
            f"cannot use {item!r} as a logger: give a name ({', '.join(BY_NAME)}) or an object "
            "with attach, __enter__, __call__ and __exit__"
        )
    return item


def hyper_parameters(about: dict[str, Any]) -> dict[str, Any]:
    """What was run, with every setting, as numbers, words and truth values."""
    named = ("algorithm", "env", "preset", "seed", "num_seeds", "num_envs")
    settings = {name: about[name] for name in named if name in about} | about.get("config", {})
    return {
        name: value if isinstance(value, bool | int | float | str) else _spell(value)
        for name, value in settings.items()
    }


def _spell(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _numbers(facts: Mapping[str, Any]) -> dict[str, float]:
    """The facts that are numbers, without the step that they stand at."""
    numbers = {}
    for name, text in flatten(facts).items():
        try:
            numbers[name] = float(text)
        except ValueError:  # words and gaps
            continue
    numbers.pop(STEPS, None)
    return numbers


def _parts(items: list[Any], most: int) -> list[list[Any]]:
    return [items[start : start + most] for start in range(0, len(items), most)]


@final
class _Ids:
    """The trackers' own names for a run, kept in its directory so that a resume finds them."""

    def __init__(self, run_dir: Path | None):
        self.directory = None if run_dir is None else str(run_dir)
        self._path = None if run_dir is None else run_dir / IDS

    def get(self, tracker: str) -> str | None:
        return self._all().get(tracker)

    def set(self, tracker: str, run_id: str) -> None:
        if self._path is None:
            return
        write_whole(self._path, json.dumps(self._all() | {tracker: run_id}))

    def _all(self) -> dict[str, str]:
        if self._path is None or not self._path.is_file():
            return {}
        return json.loads(self._path.read_text(encoding="utf-8"))


def _need(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'{extra} is not installed ({error}): pip install "understudy[{extra}]"'
        ) from error
