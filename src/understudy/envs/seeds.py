"""Which seed starts which episode. Free of JAX: environment workers import it."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

TRAINING, SELECTION, EVALUATION = 0, 1, 2


@final
@dataclass(frozen=True)
class EpisodeSeeds:
    """The reset seed of every episode of every environment, fixed by the run's seed alone.

    Environments are rows: `members` blocks of `envs_per_member`. A row's seed depends only on
    its own member's seed (`seed + member`) and on its place within that member, so that member
    `i` of seed `s` meets exactly the episodes of the single run of seed `s + i`.
    """

    seed: int
    envs_per_member: int = 1
    members: int = 1
    stream: int = TRAINING
    """Separates uses of one seed: training, the evaluations by which the best policy is selected,
    and all other evaluations never play the same episodes."""
    fixed: bool = False
    """Begin all of them alike."""
    first_env: int = 0
    """Where this collector's environments begin among all of a member's."""
    life: int = 0
    """Of the collector: one that takes the place of another does not repeat its episodes."""
    first_row: int = 0
    """Which of all rows is called 0 by whoever has a share of them."""

    @property
    def rows(self) -> int:
        return self.members * self.envs_per_member

    def __call__(self, row: int | np.integer, episode: int | np.integer) -> int:
        row, episode = (0, 0) if self.fixed else (self.first_row + int(row), int(episode))
        member, env = divmod(row, self.envs_per_member)
        place = (self.stream, self.first_env + env, episode)
        later = (self.life,) if self.life else ()
        sequence = np.random.SeedSequence(entropy=self.seed + member, spawn_key=place + later)
        return int(sequence.generate_state(1)[0])

    def for_evaluation(self, stream: int = EVALUATION) -> "EpisodeSeeds":
        return replace(self, stream=stream)
