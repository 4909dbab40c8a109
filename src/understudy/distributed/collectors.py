"""A collector in a process of its own: what it is sent, what it does, what it gives back.

The process holds the same `Collector` that the host loop holds; only a policy and an order reach
it, and only chunks leave it.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.training.setup import TrainingSetup

Episodes = list[tuple[np.ndarray, np.ndarray]]


@final
@dataclass(frozen=True)
class Recipe:
    """What every collector of a run is made from; `setup.num_envs` environments each."""

    setup: TrainingSetup
    source: EnvSource
    guard: Guard


class Order(NamedTuple):
    """Some steps to take."""

    number: int  # of the orders that this collector was given
    version: int  # of the policy that came with it
    iterations: int
    random: bool


class Delivery(NamedTuple):
    """What an order has led to."""

    place: int  # of the collector among all
    attempt: int  # which of those that held the place one after the other
    order: Order
    rows: np.ndarray  # [K, iterations, N]: the steps
    episodes: Episodes  # that ended meanwhile, per seed
    faults: dict[str, int]  # of the environments, since the collector began
    torn: bool = False  # it does not go on where the last one that was taken ended


@final
class RemoteCollector:
    """Becomes a Ray actor. It takes orders one after the other."""

    def __init__(self, recipe: Recipe, place: int, attempt: int):
        import jax

        # Acting is the host's affair: the accelerators are the learner's.
        jax.config.update("jax_platforms", "cpu")
        self._place, self._attempt = place, attempt
        self._collector = make_collector(recipe, place, attempt)

    def collect(self, policy: list[np.ndarray], order: Order) -> Delivery:
        collector = self._collector
        rows = collector.collect(policy, order.random, order.iterations)
        faults = dict(collector.faults)
        return Delivery(self._place, self._attempt, order, rows, collector.episodes(), faults)

    def state_dict(self) -> dict[str, np.ndarray]:
        return self._collector.state_dict()

    def load_state_dict(self, arrays: dict[str, np.ndarray]) -> None:
        self._collector.load_state_dict(arrays)

    def process(self) -> int:
        """Its number, for those who want to know whom they lost."""
        return os.getpid()


def make_collector(recipe: Recipe, place: int, attempt: int) -> Any:
    """The engine's collector, with the episodes and the noise of its place."""
    import jax
    import jax.numpy as jnp

    from understudy.envs.seeds import EpisodeSeeds
    from understudy.training.collector import Collector
    from understudy.training.compilation import set_up_compilation

    set_up_compilation()
    setup = recipe.setup
    seeds = EpisodeSeeds(
        setup.seed,
        setup.num_envs,
        setup.num_seeds,
        first_env=place * setup.num_envs,
        attempt=attempt,
    )
    rows = setup.num_seeds * setup.num_envs
    envs = recipe.source.make_host(rows, seeds, guard=recipe.guard)
    envs.set_action_space(setup.spec.action)
    algorithm = setup.algorithm
    keys = jax.ShapeDtypeStruct((setup.num_seeds, 2), np.uint32)
    shapes = jax.eval_shape(
        jax.vmap(lambda key: algorithm.policy(algorithm.init(setup.spec, key))), keys
    )
    policy = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    read = partial(jax.tree.unflatten, jax.tree.structure(policy))
    # A stream for each collector that there ever was: no two draw the same noise.
    stream = 1 + place + 2**16 * attempt
    return Collector(setup, envs, policy, read, jax.devices("cpu")[0], stream)
