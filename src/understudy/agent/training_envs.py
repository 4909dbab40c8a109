"""`agent.envs`: read and change the environments of a training."""

from dataclasses import dataclass
from typing import Any, final

from understudy.envs.env_changes import CALL, GET, SET
from understudy.training.trainer import Trainer


@final
@dataclass(frozen=True)
class TrainingEnvs:
    """The environments of an agent's training. Evaluations have others, which stay as they were
    made.

    A change takes effect in each environment at its next reset, so that an episode is played in one
    environment. A checkpoint holds the changes, and a resumed run repeats them; values must be
    numbers, text, True, False, None, or lists and dicts of these. A vector environment of your own
    is changed at once, by its own methods."""

    trainer: Trainer

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute that the environments (or their wrappers) have, in all of them."""
        self.trainer.changeable_envs().change(SET, name, value)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of all environments. Its results are not returned."""
        self.trainer.changeable_envs().change(CALL, method, list(arguments))

    def get_attr(self, name: str) -> list[Any]:
        """Return the present values of an attribute, one per environment (of all seeds, in their
        order)."""
        return self.trainer.changeable_envs().inspect(GET, name)
