"""Collectors in processes of their own: orders, deliveries, and what a process runs.

A process holds the same `Collector` as the host loop. Only a policy and an order are sent to it,
and only chunks come back.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from understudy.distributed.config import Cluster
from understudy.distributed.supervisor import Slot, Supervisor, read_recipe
from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.envs.seeds import EpisodeSeeds
from understudy.state_dict import StateDict
from understudy.training.collector import Collector
from understudy.training.compilation import set_up_compilation
from understudy.training.initialization import learner_shapes
from understudy.training.open_episodes import EndedEpisode
from understudy.training.setup import TrainingSetup


class Recipe(NamedTuple):
    """What every collector of a run is made from; `setup.num_envs` environments each."""

    setup: TrainingSetup
    source: EnvSource
    guard: Guard


class Order(NamedTuple):
    """Steps to take by one policy."""

    number: int  # of this order among all of the run's process
    version: int  # of the policy that came with it
    iterations: int
    random: bool


class Delivery(NamedTuple):
    """What an order has led to."""

    slot: int  # index of the collector's
    attempt: int  # of the process in it
    order: Order
    rows: np.ndarray  # [K, iterations, N]: the steps
    episodes: list[EndedEpisode]  # that ended meanwhile
    faults: dict[str, int]  # of the environments, since the collector began
    torn: bool = False  # it does not continue the last delivery of this slot that was taken


@final
class Collectors:
    """Gives orders to the collectors of a cluster, and takes in each delivery once."""

    def __init__(self, ray: Any, cluster: Cluster, recipe: Recipe, attempts: list[int]):
        """With no collectors in the cluster, a single one runs in this process."""
        self.torn: set[int] = set()  # slots whose next delivery does not continue the last one
        self.ignored = self._number = 0
        processes = ray if cluster.collectors else InProcess(ray.exceptions)
        self.supervisor = Supervisor(
            processes, cluster, "collector", CollectorProcess, recipe, attempts, self._tear
        )
        self.slots, self.put = self.supervisor.slots, processes.put

    def _tear(self, slot: Slot, orders: list[Order]) -> None:
        self.torn.add(slot.index)

    def order(self, slot: Slot, policy: Any, version: int, iterations: int, random: bool) -> None:
        """Ask a collector for steps by a policy (a reference that `put` returned)."""
        order = Order(self._number, version, iterations, random)
        self._number += 1
        self.supervisor.call(slot, "collect", policy, order, note=order)

    def ordered(self) -> int:
        """Iterations that are ordered and not delivered yet."""
        return sum(order.iterations for slot in self.slots for order in slot.calls.values())

    def deliveries(self) -> Iterator[Delivery]:
        """Yield what has arrived, slot by slot, and wait a moment for the first delivery. The
        orders of a collector that was replaced are not in its slot afterwards."""
        for slot, order, delivery, lost in self.supervisor.answers():
            if lost:  # the steps were taken, but cannot be had
                self.torn.add(slot.index)
            elif delivery.order != order:
                self.ignored += 1
            else:
                torn = slot.index in self.torn
                self.torn.discard(slot.index)
                yield delivery._replace(torn=torn)


@final
class CollectorProcess:
    """Runs in a collector's process, and carries out orders one after the other."""

    def __init__(self, recipe: Any, slot: int, attempt: int):
        recipe = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
        self._slot, self._attempt = slot, attempt
        self._collector = make_collector(recipe, slot, attempt)

    def collect(self, policy: list[np.ndarray], order: Order) -> Delivery:
        collector = self._collector
        rows = collector.collect(policy, order.random, order.iterations)
        faults = dict(collector.envs.faults)
        return Delivery(self._slot, self._attempt, order, rows, collector.tally.take(), faults)

    def state_dict(self) -> StateDict:
        return self._collector.state_dict()

    def load_state_dict(self, state: StateDict) -> bool:
        """Continue from a state, and return whether there is one: with an empty state the collector
        starts anew."""
        if state:
            self._collector.load_state_dict(state)
        return bool(state)

    def pid(self) -> int:
        return os.getpid()

    def close(self) -> None:
        self._collector.envs.close()


def make_collector(recipe: Recipe, slot: int, attempt: int) -> Collector:
    """Make the collector of a slot, with seeds of episodes and noise of its own."""
    set_up_compilation()
    setup, num_seeds, num_envs = recipe.setup, recipe.setup.num_seeds, recipe.setup.num_envs
    first = slot * num_envs
    seeds = EpisodeSeeds(setup.seed, num_envs, num_seeds, first_env=first, attempt=attempt)
    envs = recipe.source.make_host(num_seeds * num_envs, seeds, guard=recipe.guard)
    envs.set_action_space(setup.spec.action)
    shapes = jax.eval_shape(setup.algorithm.policy, learner_shapes(setup).state)
    policy = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    read = partial(jax.tree.unflatten, jax.tree.structure(policy))
    # A stream for every process that ever holds a slot: no two draw the same noise.
    stream = 1 + slot + 2**16 * attempt
    return Collector(setup, envs, policy, read, jax.devices("cpu")[0], stream)


@final
class InProcess:
    """The part of Ray's interface that a supervisor uses, for an object in this process: a call
    runs when its answer is read."""

    def __init__(self, exceptions: Any):
        self.exceptions = exceptions

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **options: Any) -> Callable[[type], Any]:
        return lambda actor_class: SimpleNamespace(remote=partial(self._start, actor_class))

    def _start(self, actor_class: type, recipe: list[Any], index: int, attempt: int) -> Any:
        return _LocalActor(actor_class(recipe[0], index, attempt))

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> Any:
        return calls[:1], calls[1:]  # one at a time: the learner learns in between

    def get(self, call: Callable[[], Any]) -> Any:
        return call()

    def kill(self, actor: "_LocalActor") -> None:
        actor.instance.close()


@final
class _LocalActor:
    def __init__(self, instance: Any):
        self.instance = instance

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(partial, getattr(self.instance, method)))
