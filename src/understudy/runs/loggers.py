"""Loggers beside the CSV file: TensorBoard, Weights & Biases, MLflow.

A logger is a context manager that is called with rows of the log. `Guarded` turns its failures (a
network, a disk) into one warning, so that they never end a training. The x-axis is
`time/total_steps`; lists of one value per seed become one curve per seed.
"""

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from understudy.algorithms.config import nearest
from understudy.errors import ConfigError, import_extra
from understudy.runs.csv_log import STEPS, LogRow, flatten
from understudy.runs.files import refuse_link, write_whole

IDS = "loggers.json"  # in the run directory: the ids of the trackers' runs, for a resumed run
FAILURES_IN_A_ROW = 3  # after these a tracker is not called again: each call may take minutes

_log = logging.getLogger("understudy.runs")


@runtime_checkable
class Logger(Protocol):
    """What `logger=` takes. `attach` is called once, before the logger is entered."""

    def attach(self, run_dir: Path | None, metadata: dict[str, Any], title: str) -> None: ...

    def __enter__(self) -> Any: ...

    def __call__(self, row: LogRow) -> None: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...


@final
class TensorBoard:
    """Event files in `directory`, or in `tensorboard/` of the run directory.

    A resumed run continues in the same place, and replaces rows beyond its checkpoint.
    """

    def __init__(self, directory: Path | str | None = None):
        self._events = _import("tensorboard.compat.proto.event_pb2")
        self._summaries = _import("tensorboard.compat.proto.summary_pb2")
        self._hparams = _import("tensorboard.plugins.hparams.summary_v2")
        self._files = _import("tensorboard.summary.writer.event_file_writer")
        self.directory = None if directory is None else Path(directory)
        self._place, self._metadata = self.directory, {}

    def attach(self, run_dir: Path | None, metadata: dict[str, Any], title: str) -> None:
        self._place = self.directory or (run_dir and run_dir / "tensorboard")
        self._metadata = metadata
        if self._place is None:
            raise ConfigError("TensorBoard needs a place: give run_dir, or TensorBoard(directory)")

    def __enter__(self) -> "TensorBoard":
        if self._place is None:
            raise ConfigError("TensorBoard needs a place: TensorBoard(directory)")
        refuse_link(self._place)
        self._writer = self._files.EventFileWriter(str(self._place))
        self._begun = False
        return self

    def __call__(self, row: LogRow) -> None:
        step = int(row[STEPS])
        if not self._begun:
            self._begin(step)
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in _numbers(row).items()
        ]
        self._write(step, "summary", self._summaries.Summary(value=values))
        self._writer.flush()  # a crash then loses no row

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._writer.close()

    def _begin(self, step: int) -> None:
        # Readers drop the rows of earlier files from this step on.
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(step, "session_log", start)
        if settings := hyper_parameters(self._metadata):
            score = self._hparams.Metric("eval/mean_reward")
            self._write(0, "summary", self._hparams.hparams_config_pb([], [score]))
            self._write(0, "summary", self._hparams.hparams_pb(settings, trial_id=str(self._place)))
        self._begun = True

    def _write(self, step: int, kind: str, content: Any) -> None:
        event = self._events.Event(step=step, wall_time=time.time(), **{kind: content})
        self._writer.add_event(event)


@final
class WandB:
    """A run of Weights & Biases. `mode` is "online", "offline" or "disabled"."""

    def __init__(
        self, project: str = "understudy", entity: str | None = None, mode: str | None = None
    ):
        self._wandb = _import("wandb")
        self.project, self.entity, self.mode = project, entity, mode
        self.attach(None, {}, None)

    def attach(self, run_dir: Path | None, metadata: dict[str, Any], title: str | None) -> None:
        self._run_dir, self._metadata, self._title = run_dir, metadata, title

    def __enter__(self) -> "WandB":
        known = read_ids(self._run_dir).get("wandb")
        self._run = self._wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            name=self._title,
            dir=None if self._run_dir is None else str(self._run_dir),
            config=hyper_parameters(self._metadata),
            id=known,
            resume="allow" if known else None,
            allow_val_change=True if known else None,
        )
        add_id(self._run_dir, "wandb", self._run.id)
        # W&B's own step cannot decrease, but that of a run from an older checkpoint does.
        self._run.define_metric("*", step_metric=STEPS)
        return self

    def __call__(self, row: LogRow) -> None:
        self._run.log({STEPS: int(row[STEPS]), **_numbers(row)})

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._run.finish(exit_code=int(kind is not None))


@final
class MLflow:
    """A run of MLflow, in `experiment` of `tracking_uri` (None: MLflow's own default)."""

    def __init__(self, experiment: str = "understudy", tracking_uri: str | None = None):
        self._mlflow, self._entities = _import("mlflow"), _import("mlflow.entities")
        self.experiment, self.tracking_uri = experiment, tracking_uri
        self.attach(None, {}, None)

    def attach(self, run_dir: Path | None, metadata: dict[str, Any], title: str | None) -> None:
        self._run_dir, self._metadata, self._title = run_dir, metadata, title

    def __enter__(self) -> "MLflow":
        self._client = self._mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        known = read_ids(self._run_dir).get("mlflow")
        if known:
            self._run_id = known
            self._client.update_run(known, status="RUNNING")
        else:
            self._begin()
            add_id(self._run_dir, "mlflow", self._run_id)
        return self

    def __call__(self, row: LogRow) -> None:
        step, now = int(row[STEPS]), int(time.time() * 1000)
        metrics = [
            self._entities.Metric(_mlflow_name(name), value, now, step)
            for name, value in _numbers(row).items()
        ]
        self._log_batches("metrics", metrics, 1000)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if kind else "FINISHED")

    def _begin(self) -> None:
        client, name = self._client, self.experiment
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        self._run_id = client.create_run(experiment, run_name=self._title).info.run_id
        settings = hyper_parameters(self._metadata).items()
        params = [self._entities.Param(name, str(value)) for name, value in settings]
        self._log_batches("params", params, 100)

    def _log_batches(self, kind: str, items: list[Any], most: int) -> None:
        """Log metrics or params, at most as many in a request as a server accepts."""
        for start in range(0, len(items), most):
            self._client.log_batch(self._run_id, **{kind: items[start : start + most]})


@final
class Guarded:
    """A logger whose failures cost one warning, and never the run."""

    def __init__(self, logger: Logger):
        self.logger = logger
        self._warned = self._open = False
        self._failures = 0  # in a row

    def attach(self, run_dir: Path | None, metadata: dict[str, Any], title: str) -> None:
        self.logger.attach(run_dir, metadata, title)

    def __enter__(self) -> "Guarded":
        self._open = self._try("opened", self.logger.__enter__)
        return self

    def __call__(self, row: LogRow) -> None:
        if self._open and self._failures < FAILURES_IN_A_ROW:
            written = self._try("written to", lambda: self.logger(row))
            self._failures = 0 if written else self._failures + 1

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._open:
            self._try("closed", lambda: self.logger.__exit__(kind, error, traceback))
            self._open = False

    def _try(self, done: str, action: Callable[[], Any]) -> bool:
        try:
            action()
            return True
        except Exception as error:
            if not self._warned:
                self._warned = True
                problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
                _log.warning(
                    "%s could not be %s (%s); training continues without it",
                    type(self.logger).__name__, done, problem,
                )  # fmt: skip
            return False


BY_NAME: dict[str, Callable[[], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def open_loggers(
    wanted: Any, run_dir: Path | None, metadata: dict[str, Any], title: str
) -> list[Logger]:
    """Return the wanted loggers (names or objects, one or several), each guarded and attached to
    the run. A wrong name or a missing package is an error here."""
    one = isinstance(wanted, str) or not isinstance(wanted, Sequence)
    items = [] if wanted is None else [wanted] if one else wanted
    loggers: list[Logger] = [Guarded(_make_logger(item)) for item in items]
    for logger in loggers:
        logger.attach(run_dir, metadata, title)
    return loggers


def _make_logger(item: Any) -> Logger:
    known = ", ".join(BY_NAME)
    if isinstance(item, str):
        if item not in BY_NAME:
            raise ConfigError(
                f"unknown logger '{item}'{nearest(item, BY_NAME)}; there are: {known}"
            )
        return BY_NAME[item]()
    if not isinstance(item, Logger) or isinstance(item, type):
        raise ConfigError(
            f"cannot use {item!r} as a logger: give a name ({known}) or an object "
            "with attach, __enter__, __call__ and __exit__"
        )
    return item


def hyper_parameters(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return all settings of a run as numbers, words and truth values."""
    named = ("algorithm", "env", "preset", "seed", "num_seeds", "num_envs")
    settings = {name: metadata[name] for name in named if name in metadata}
    args = {f"env_args.{name}": value for name, value in metadata.get("env_args", {}).items()}
    for name, value in (settings | args | metadata.get("config", {})).items():
        if isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        settings[name] = value if isinstance(value, bool | int | float | str) else str(value)
    return settings


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The values of a row that are numbers, without the step."""
    numbers = {}
    for name, text in flatten(row).items():
        with contextlib.suppress(ValueError):  # a word, or an empty cell
            numbers[name] = float(text)
    numbers.pop(STEPS, None)
    return numbers


def _mlflow_name(name: str) -> str:
    """Return a name that MLflow takes. A file store cannot hold x/seed0 beside x, because these
    would be a directory and a file of one name; nor the keys x and x/y of info."""
    group, info, key = name.partition("info/")
    name = group + info + key.replace("/", ".") if info else re.sub(r"/(seed\d+)$", r"_\1", name)
    return re.sub(r"[^\w\-. :/]", "_", name)


def _import(module: str) -> Any:
    package = module.partition(".")[0]
    return import_extra(module, package, f"{package} is not installed")


def read_ids(run_dir: Path | None) -> dict[str, str]:
    """Read the ids that trackers have given to a run, by tracker."""
    path = run_dir and run_dir / IDS
    return json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else {}


def add_id(run_dir: Path | None, tracker: str, run_id: str) -> None:
    """Store the id that a tracker has given to a run."""
    if run_dir is not None:
        write_whole(run_dir / IDS, json.dumps(read_ids(run_dir) | {tracker: run_id}))
