"""The two programs of the host loop, each callable alone: the one place in benchmarks/ that looks
inside the trainer."""

from typing import Any


class HostParts:
    """Act or learn again on the step that happened last; needs a trainer past its warm-up."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    @property
    def block(self) -> Any:
        """A packed step, as it crosses to the device."""
        return self._trainer._block

    def act(self) -> Any:
        """Dispatch the act program; gives the action."""
        trainer = self._trainer
        policy = trainer.learning.policy()
        return trainer.act(policy, trainer._memory, trainer._block, trainer._act_key)[0]

    def learn(self) -> None:
        """Hand over a step for learning (add, sample, update)."""
        self._trainer._learn()

    def finish(self) -> Any:
        """Something to wait for: what learning has changed last."""
        return self._trainer.ring.cursor
