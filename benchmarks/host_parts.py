"""The trainer of the host loop and its two programs, as separate functions. Only this file of
benchmarks/ uses internals of an agent."""

from typing import Any

import jax

ENDLESS = 10**9  # steps that schedules span: their ends are not what is measured


def begin(agent: Any) -> Any:
    """The agent's trainer, as `train` would begin it: hyper-parameters that move, move."""
    trainer = agent.trainer
    trainer.position.horizon = ENDLESS
    trainer.schedule({})
    return trainer


def settle(trainer: Any) -> None:
    """Wait until nothing is running any more."""
    jax.block_until_ready((trainer.learner, trainer.experience))


class HostParts:
    """Act or learn again on the step that happened last; needs a trainer past its warm-up."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    @property
    def rows(self) -> Any:
        """A step, as it is handed over for learning."""
        return self._trainer.collector.record[-1][:, None]

    def act(self) -> Any:
        """Dispatch the act program; gives the action."""
        collector = self._trainer.collector
        collector.use_policy(self._trainer.transport.policy())
        collector.act(random=False)
        return collector.actors[0].acted.action

    def learn(self) -> None:
        """Hand over a step for learning (add, sample, update)."""
        self._trainer.learn(self.rows)

    def finish(self) -> Any:
        """Something to wait for: what learning has changed last."""
        return self._trainer.experience.cursor
