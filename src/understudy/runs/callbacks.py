"""Callbacks: user code that a run calls while it trains, and values that users add to its log."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from understudy.algorithms.config import nearest
from understudy.runs import schema
from understudy.runs.csv_log import LogRow
from understudy.types import ConfigError

HOOKS = (
    "on_train_start", "on_chunk", "on_episode", "on_evaluation", "on_log", "on_checkpoint",
    "on_train_end",
)  # fmt: skip
BETWEEN_CHUNKS = ("on_chunk", "on_episode")
LARGEST_STATE = 1_000_000  # characters of JSON, of all callbacks together
LONGEST_NAME = 200
OWN_GROUPS = (
    "time",
    "rollout",
    "train",
    "eval",
    "info",
    "env",
    "cluster",
    "qd",
)  # of names in the log

_log = logging.getLogger("understudy.runs")


@final
@dataclass(frozen=True)
class Episode:
    """An episode that ended in training."""

    seed_index: int
    """Which of several seeds played it, from 0 on."""
    total_reward: float
    length: int
    steps: int = 0
    """The agent's steps when `on_episode` is called."""
    info: dict[str, float] = field(default_factory=dict)
    """The mean of each number that the environment reported in `info`, and its last `success`, 0
    or 1, if there was one."""


class Callback:
    """The base class of callbacks. A subclass overrides the hooks that it needs.

    Training ends, with an evaluation and a checkpoint, if a hook returns True. A subclass may also
    define `state_dict()`, which returns a dict of JSON values for checkpoints, and
    `load_state_dict(state)`, which gets it back when a loaded agent trains on."""

    def __init_subclass__(cls) -> None:
        for name in vars(cls):
            if name.lstrip("_").startswith("on_") and name not in HOOKS:
                near = nearest(name.lstrip("_"), HOOKS)
                raise ConfigError(
                    f"{cls.__name__}.{name} is no hook{near}; there are: {', '.join(HOOKS)}"
                )

    def on_train_start(self, agent: Any) -> bool | None:
        """Called once, before the first step."""

    def on_chunk(self, agent: Any) -> bool | None:
        """Called after every chunk of steps: `chunk_steps` steps of each environment (on a CPU 1
        by default, in A2C a rollout), or one program of the device loop."""

    def on_episode(self, agent: Any, episode: Episode) -> bool | None:
        """Called after a chunk, before `on_chunk`, for each episode that ended in it."""

    def on_evaluation(self, agent: Any, results: LogRow) -> bool | None:
        """Called after an evaluation with its part of the next row of the log."""

    def on_log(self, agent: Any, row: LogRow) -> bool | None:
        """Called with each row of the log."""

    def on_checkpoint(self, agent: Any, path: Any) -> bool | None:
        """Called after a checkpoint was written: a numbered one, or `best`."""

    def on_train_end(self, agent: Any) -> bool | None:
        """Called once, after the last checkpoint; not after an error or a signal."""


RowFunction = Callable[[LogRow], bool | None]
CallbacksArgument = Callback | RowFunction | Sequence[Callback | RowFunction]
"""What `train(callbacks=…)` takes."""


@final
class Function(Callback):
    """A function of the row of the log, as a callback."""

    def __init__(self, function: Any):
        self._function = function

    def on_log(self, agent: Any, row: LogRow) -> bool | None:
        return self._function(row)


def check_callbacks(given: Any) -> tuple[Callback, ...]:
    """Return the callbacks, given alone or several."""
    several = given if isinstance(given, tuple | list) else (given,)
    for one in several:
        if isinstance(one, type):
            raise ConfigError(f"callbacks are objects: give {one.__name__}(…), not the class")
        if not isinstance(one, Callback) and not callable(one):
            raise ConfigError(
                "callbacks are functions of the row of the log or objects of a subclass of "
                f"us.Callback, one or several, got {one!r:.100}"
            )
    return tuple(one if isinstance(one, Callback) else Function(one) for one in several)


def overrides(callback: Callback, hook: str) -> bool:
    return getattr(type(callback), hook) is not getattr(Callback, hook)


def refuse_hooks(callbacks: Iterable[Callback], hooks: Sequence[str], function: str) -> None:
    """Refuse callbacks that override hooks which `function` does not call."""
    for one in callbacks:
        for hook in hooks:
            if overrides(one, hook):
                called = ", ".join(name for name in HOOKS if name not in hooks)
                raise ConfigError(
                    f"{type(one).__name__}.{hook}: {function} does not call it, only {called}"
                )


@final
class Callbacks:
    """The callbacks of a run, their states, and the values that users log.

    It also holds the episodes that ended within the present chunk: `on_episode` gets them at the
    chunk's end, also if the run is stopped and resumed before."""

    def __init__(self, items: Iterable[Callback] = (), stored: Mapping[str, Any] | None = None):
        """`stored` is what `state_dict` returned, if a checkpoint was loaded."""
        self._items, self._calling = tuple(items), False
        stored = {"states": {}, "episodes": [], "logged": {}} | dict(stored or {})
        self._stored = dict(stored["states"])  # until callbacks take them
        self._taken: dict[str, Any] = {}  # until training begins: it may fail before
        self._episodes = [Episode(*one[:3], info=one[3]) for one in stored["episodes"]]
        self._logged = {name: list(pair) for name, pair in stored["logged"].items()}

    def follow(self, items: tuple[Callback, ...]) -> "Callbacks":
        """Return the callbacks of the next training. They get the states of a checkpoint that was
        loaded; states of others are dropped with a warning."""
        if self._calling:
            raise ConfigError("a hook cannot begin a training within the one that calls it")
        later, states = Callbacks(items), dict(self._stored or self._taken)
        later._taken = dict(states)
        later._episodes, later._logged = self._episodes, self._logged
        for key, one in later._stateful().items():
            if key in states:
                one.load_state_dict(states.pop(key))
        if states:
            _log.warning(
                "the checkpoint holds the state of callbacks that this training does not have, "
                "which is dropped: %s", ", ".join(sorted(states)),
            )  # fmt: skip
        later.state_dict()  # refuse one that cannot be stored before training begins
        if not later.wanted("on_episode"):
            later._episodes = []
        return later

    def wanted(self, *hooks: str) -> bool:
        """Whether a callback overrides one of these hooks."""
        return any(overrides(one, hook) for one in self._items for hook in hooks)

    def call(self, hook: str, *arguments: Any) -> bool:
        """Call a hook of all callbacks; return whether one of them asks to stop."""
        self._calling, self._taken = True, {}
        try:
            stops = [one for one in self._items if getattr(one, hook)(*arguments)]
        finally:
            self._calling = False
        for one in stops:
            _log.info("%s.%s ends training", type(one).__name__, hook)
        return bool(stops)

    def add_episodes(self, episodes: Iterable[Episode]) -> None:
        self._episodes += episodes

    def end_chunk(self, agent: Any, steps: int) -> bool:
        """Call `on_episode` and `on_chunk`; return whether a callback asks to stop."""
        stops = False
        while self._episodes:
            episode = replace(self._episodes.pop(0), steps=steps)
            stops |= self.call("on_episode", agent, episode)
        return self.call("on_chunk", agent) or stops

    def log(self, name: str, value: Any) -> None:
        """Add a value to the next row of the log, which gets the mean."""
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(
                f"a name in the log is text of 1 to {LONGEST_NAME} printable characters, "
                f"got {name!r:.60}"
            )
        group = name.partition("/")[0]
        if group in OWN_GROUPS:
            raise ConfigError(
                f"{name!r} is among the library's own names ({group}/…): choose another, such as "
                f"{'custom/' + name.rpartition('/')[2]!r}"
            )
        array = np.asarray(value)
        if array.ndim or array.dtype.kind not in "fiub" or not math.isfinite(array):
            raise ConfigError(f"the value of {name!r} must be a finite number, got {value!r:.60}")
        total, count = self._logged.get(name, (0.0, 0))
        self._logged[name] = [total + float(array), count + 1]

    def take_logged(self) -> LogRow:
        """Return the means of the logged values since the last call."""
        logged, self._logged = self._logged, {}
        return {name: total / count for name, (total, count) in logged.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return JSON values for the manifest of a checkpoint."""
        states = {key: one.state_dict() for key, one in self._stateful().items()}
        for key, state in states.items():
            try:
                if not isinstance(state, dict):
                    raise TypeError(f"it is {type(state).__name__}")
                states[key] = json.loads(json.dumps(state))  # a copy: the callback's own moves on
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{key}: state_dict() must return a dict of JSON values: {error}"
                ) from error
        found = {
            "states": self._stored | states,
            "episodes": [
                [one.seed_index, one.total_reward, one.length, one.info] for one in self._episodes
            ],
            "logged": {name: list(pair) for name, pair in self._logged.items()},
        }
        if not is_state(found):
            raise ConfigError(
                f"the states of callbacks take more than {LARGEST_STATE:,} characters of JSON"
            )
        return found

    def _stateful(self) -> dict[str, Any]:
        """The callbacks that have a state, by class and occurrence."""
        found: dict[str, Any] = {}
        for one in self._items:
            if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
                name = type(one).__name__
                found[f"{name}.{sum(key.startswith(name + '.') for key in found)}"] = one
        return found


def is_state(value: Any) -> bool:
    """Whether a manifest's entry is one that `Callbacks.state_dict` could have returned."""
    kinds = {
        "states": lambda states: schema.table(states) and all(map(schema.table, states.values())),
        "episodes": schema.list_of(_is_episode),
        "logged": lambda logged: schema.table(logged) and all(map(_is_mean, logged.values())),
    }
    return schema.table(value) and not schema.problems(value, kinds) and _size(value)


def _is_episode(one: Any) -> bool:
    whole = schema.whole(0, 2**53)
    return (
        isinstance(one, list)
        and len(one) == 4
        and whole(one[0])
        and isinstance(one[1], float)
        and whole(one[2])
        and schema.table(one[3])
        and all(map(schema.number, one[3].values()))
    )


def _is_mean(pair: Any) -> bool:
    is_pair = isinstance(pair, list) and len(pair) == 2
    return is_pair and schema.number(pair[0]) and schema.whole(1, 2**53)(pair[1])


def _size(value: Any) -> bool:
    return len(json.dumps(value)) <= LARGEST_STATE
