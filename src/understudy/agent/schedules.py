"""The schedules that an agent's hyper-parameters follow."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, final

from understudy.ops.schedules import Schedule, describe, last_step, spanning
from understudy.training.trainer import Trainer

_log = logging.getLogger("understudy.agent")


@final
@dataclass
class Schedules:
    """The schedules of all calls of `train`, and the hyper-parameters that were set since."""

    schedules: dict[str, Schedule] = field(default_factory=dict)
    set_by_hand: set[str] = field(default_factory=set)  # this ends even the config's own schedules

    def follow(self, trainer: Trainer, schedules: dict[str, Schedule] | None, stop: int) -> None:
        """Add schedules to a trainer, in a training that ends at step `stop`. The config's own
        schedules span the steps up to there. Schedules of an earlier training keep their length."""
        earlier = {
            name: spanning(s, trainer.position.horizon) for name, s in self.schedules.items()
        }
        given = {name: spanning(s, stop) for name, s in (schedules or {}).items()}
        trainer.position.horizon = stop
        trainer.schedule(earlier | given)
        self.schedules = earlier | given
        self.set_by_hand -= given.keys()
        if trainer.hyper_schedules is not None:
            trainer.hyper_schedules.end(self.set_by_hand)
        for name in earlier.keys() - given.keys():
            end = last_step(earlier[name])
            if end is not None and end < stop:
                _log.warning(
                    "the schedule of %s was given to an earlier training: it ends at step %d of %d",
                    name, end, stop,
                )  # fmt: skip

    def end(self, names: Iterable[str]) -> None:
        """End the schedules of hyper-parameters that were set."""
        for name in names:
            self.schedules.pop(name, None)
        self.set_by_hand |= set(names)

    def describe(self) -> dict[str, Any]:
        """Describe the schedules for a manifest; a user's own function is described as None."""
        curves = {name: describe(schedule) for name, schedule in self.schedules.items()}
        return {"schedules": curves, "set_by_hand": sorted(self.set_by_hand)}
