"""The position of a run, and a copy of everything that changes in it."""

from dataclasses import dataclass
from typing import final

from understudy.state_dict import StateDict


@dataclass
class Position:
    """How far a run has come. Unbatched: every seed is at the same place."""

    iterations: int = 0  # steps of each environment
    updates: int = 0
    horizon: int = 0  # steps in all at the end of the present training: schedules span them
    refilled_from: int = 0  # the iteration at which an empty ring was last begun
    first_training: int = 0  # steps of the first training, by which defaults are chosen
    logged: int = 0  # iterations that the log has told of
    seconds: float = 0.0  # of the run, over all calls of `train`


@final
@dataclass(frozen=True)
class Snapshot:
    """What a run needs in order to go on. The `world` (experience, environments, what acting
    remembers) may be left out: then only what was learned comes back."""

    position: Position
    learner: StateDict
    world: StateDict | None

    def groups(self, world: bool = True) -> dict[str, StateDict]:
        """For a checkpoint, each to a file of its own."""
        learner = {"learner": self.learner}
        return learner | {"world": self.world} if world and self.world is not None else learner
