"""The position of a run, and a copy of everything that changes in it."""

from dataclasses import asdict, dataclass, field
from typing import Any, final

from understudy.envs.env_changes import EnvChanges
from understudy.state_dict import StateDict


@dataclass
class Position:
    """The progress of a run, the same for every seed."""

    iterations: int = 0  # steps of each environment
    updates: int = 0
    horizon: int = 0  # steps in all at the end of the present training: schedules span them
    refilled_from: int = 0  # the iteration at which an empty buffer was last begun
    first_training: int = 0  # steps of the first training, by which defaults are chosen
    logged: int = 0  # iterations up to the latest row of the log
    seconds: float = 0.0  # of the run, over all calls of `train`


@final
@dataclass(frozen=True)
class Snapshot:
    """Everything that a run needs to continue. Without the `world` (experience, environments, state
    of acting) only what was learned is restored."""

    position: Position
    learner: StateDict
    world: StateDict | None
    env_changes: dict[str, Any] = field(default_factory=lambda: EnvChanges().state_dict())

    def describe(self) -> dict[str, Any]:
        """The part of a checkpoint's manifest."""
        return {"position": asdict(self.position), "env_changes": self.env_changes}

    def groups(self, world: bool = True) -> dict[str, StateDict]:
        """The arrays of each file of a checkpoint."""
        learner = {"learner": self.learner}
        return learner | {"world": self.world} if world and self.world is not None else learner
