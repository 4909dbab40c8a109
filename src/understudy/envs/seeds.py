"""The seed of every episode. Free of JAX: environment workers import it."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

TRAINING, SELECTION, EVALUATION = 0, 1, 2


@final
@dataclass(frozen=True)
class EpisodeSeeds:
    """The reset seed of every episode of every environment, fixed by the run's seed alone.

    Environments are rows: `envs_per_seed` rows for each of `num_seeds` seeds. The seed of a reset
    depends only on the seed that the row belongs to and on the row's place within it. So seed `i`
    of a run that begins at seed `s` plays the episodes of the single run of seed `s + i`.
    """

    seed: int
    envs_per_seed: int = 1
    num_seeds: int = 1
    stream: int = TRAINING
    """Separates uses of one seed: training, the evaluations by which the best policy is selected,
    and all other evaluations never play the same episodes."""
    fixed: bool = False
    """Begin all episodes with the same seed."""
    first_env: int = 0
    """Where this collector's environments begin among all of a seed's."""
    attempt: int = 0
    """Of the collector: one that takes the place of another does not repeat its episodes."""
    first_row: int = 0
    """The number of the first row here, among all rows."""

    @property
    def rows(self) -> int:
        return self.num_seeds * self.envs_per_seed

    def __call__(self, row: int | np.integer, episode: int | np.integer) -> int:
        row, episode = (0, 0) if self.fixed else (self.first_row + int(row), int(episode))
        seed_index, env = divmod(row, self.envs_per_seed)
        place = (self.stream, self.first_env + env, episode)
        later = (self.attempt,) if self.attempt else ()
        sequence = np.random.SeedSequence(entropy=self.seed + seed_index, spawn_key=place + later)
        return int(sequence.generate_state(1)[0])

    def for_evaluation(self, stream: int = EVALUATION) -> "EpisodeSeeds":
        return replace(self, stream=stream)
