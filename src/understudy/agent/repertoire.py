"""A repertoire of agents, by their behavior."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.agent.agent import Agent
from understudy.envs.descriptors import Descriptor
from understudy.qd.repertoire import Repertoire as Cells
from understudy.qd.repertoire import metrics, nearest, policies_in
from understudy.types import ConfigError


@final
@dataclass(frozen=True, eq=False, repr=False)
class Repertoire:
    """Policies by their behavior: each cell holds the best one found there."""

    cells: Cells
    descriptor: Descriptor
    offset: float  # of the QD-score
    make_agent: Callable[[Any], Agent]  # of a policy

    def __len__(self) -> int:
        """The number of filled cells."""
        return int(np.sum(self.cells.filled))

    @property
    def filled(self) -> np.ndarray:
        """[policies] the numbers of the filled cells."""
        return np.flatnonzero(self.cells.filled)

    @property
    def fitness(self) -> np.ndarray:
        """[policies]"""
        return np.asarray(self.cells.fitness)[self.filled]

    @property
    def descriptors(self) -> np.ndarray:
        """[policies, size] the measured behavior of each."""
        return np.asarray(self.cells.descriptor)[self.filled]

    @property
    def metrics(self) -> dict[str, float]:
        """QD-score (`offset` is subtracted from every fitness), coverage and best fitness."""
        found = jax.device_get(metrics(self.cells, self.offset))
        return {name: float(value) for name, value in found.items()}

    def select(self, descriptor: Sequence[float] | np.ndarray) -> Agent:
        """Return the agent whose behavior is nearest to this one."""
        return self.agent(self.nearest(descriptor))

    def nearest(self, descriptor: Sequence[float] | np.ndarray) -> int:
        """Return the cell of the policy whose behavior is nearest to this one."""
        wanted = np.asarray(descriptor, np.float32)
        if wanted.shape != (self.descriptor.size,) or not np.isfinite(wanted).all():
            raise ConfigError(
                f"a behavior here is {self.descriptor.size} finite numbers "
                f"({', '.join(self.descriptor.axis_names)}), got {descriptor}"
            )
        self.refuse_empty()
        return int(nearest(self.cells, jnp.asarray(wanted)))

    @property
    def best(self) -> Agent:
        """The agent with the highest fitness."""
        self.refuse_empty()
        return self.agent(int(np.argmax(self.cells.fitness)))

    def sample(self, count: int, seed: int = 0) -> list[Agent]:
        """Return agents drawn at random, each with equal probability."""
        self.refuse_empty()
        drawn = np.random.default_rng(seed).choice(self.filled, count)
        return [self.agent(int(cell)) for cell in drawn]

    def agent(self, cell: int) -> Agent:
        """Return the agent in a filled cell, by the number of the cell."""
        if not 0 <= cell < self.cells.cells.count or not bool(self.cells.filled[cell]):
            raise ConfigError(f"cell {cell} is not among the {len(self)} filled ones")
        return self.make_agent(policies_in(self.cells, cell))

    def draw(self, path: str | Path, title: str = "") -> Path:
        """Draw the map as a picture."""
        # Matplotlib takes half a second to import, so it is imported when there is a picture.
        from understudy.reports.maps import heat_map

        return heat_map(self.cells, path, names=self.descriptor.axis_names, title=title)

    def refuse_empty(self) -> None:
        """Raise a ConfigError if there is no policy."""
        if not len(self):
            raise ConfigError("this repertoire is empty: illuminate first")

    def __repr__(self) -> str:
        found = self.metrics
        return (
            f"Repertoire({len(self)} of {self.cells.cells.count} cells, "
            f"QD-score {found['qd_score']:.4g}, best fitness {found['max_fitness']:.4g})"
        )
