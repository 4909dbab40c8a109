"""The cluster loop: remote collectors step environments while the learner updates.

One turn is

    take in deliveries → add their steps and do the updates that are due → order more steps, by the
    newest policy

The update schedule of the host loop counts the transitions that were taken in. So the ratio of
updates to data does not depend on the collectors. Each collector has a limited number of orders at
a time, so neither side gets far ahead of the other.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, final

import jax
import numpy as np

from understudy.algorithms.on_policy import RolloutNeeds
from understudy.buffers import RemoteReplayBuffer
from understudy.distributed.collectors import Collectors, Delivery, Order, Recipe
from understudy.distributed.config import Cluster, widened
from understudy.distributed.connect import connect, cores, send_recipe
from understudy.distributed.gradient_workers import (
    BatchWorkers,
    GradientWorkers,
    check_gradient_workers,
    describe_staleness,
)
from understudy.distributed.replay_shards import ShardWorkers
from understudy.distributed.supervisor import Slot
from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.state_dict import StateDict, add_prefix, select_prefix
from understudy.training.learner import Call, observe_rollout, observed_last
from understudy.training.open_episodes import EndedEpisode, pack_episodes, unpack_episodes
from understudy.training.replay_placement import EVERYWHERE
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.snapshot import Snapshot
from understudy.training.step_packing import as_bytes, pack_rows, step_dtype
from understudy.training.trainer import Trainer
from understudy.training.transport import Rows, Transport
from understudy.training.update_schedule import UpdateSchedule
from understudy.types import ConfigError

USUAL_CHUNK = 20  # iterations; divides what logs and evaluations are usually asked at


@final
class ClusterTrainer(Trainer):
    """Trains K seeds on K × N environments of every collector. An iteration is one step of one
    collector's environments."""

    places: ClassVar[tuple[str, ...]] = EVERYWHERE

    def __init__(self, setup: TrainingSetup, source: EnvSource, guard: Guard, cluster: Cluster):
        self._cluster = cluster
        self._needs = setup.algorithm.needs
        self._on_policy = self._needs.on_policy
        self._in_rounds = cluster.mode == "sync"
        if self._on_policy and not self._in_rounds and setup.algorithm.config.normalize_rewards:
            raise ConfigError(
                "normalize_rewards follows the open episodes of all environments at once: rollouts "
                "that come one by one cannot have it; use mode='sync'"
            )
        # The learner and its buffer have a lane for every environment of all collectors.
        wide = widened(setup, cluster)
        if cluster.gradient_workers:
            check_gradient_workers(wide, cluster)
        self._rows = step_dtype(setup.algorithm, setup.spec)
        sharded = cluster.replay == "sharded"
        states = self.initialize(wide, RemoteReplayBuffer(setup.spec) if sharded else None)
        self.states = self.transport = Transport(wide, self.buffer, *states)
        self.setup = setup
        self.update_schedule = self._make_update_schedule()
        self._refuse_long_chunks()
        self.chunk_iterations = self._length
        self._ray = join(cluster)
        self._recipe = Recipe(setup, source, guard)
        if cluster.collectors:
            send_recipe(self._ray, "collector", self._recipe)  # refused before anything starts
        self.workers: GradientWorkers | None = None
        if sharded:
            self.workers = ShardWorkers(self.buffer_setup, cluster)
        elif cluster.gradient_workers:
            self.workers = BatchWorkers(self.buffer_setup, cluster, self.buffer)
        observing = partial(observe_rollout, setup.algorithm, self.buffer)
        self._observe_rollout = jax.jit(over_seeds(observing, setup.num_seeds))
        self.arrived: deque[Delivery] = deque()  # taken in, not yet learned from
        self._version, self._published = 0, None
        self._episodes: list[EndedEpisode] = []
        self._known = 0  # how many of these `new_episodes` has returned
        self._faults: dict[tuple[int, int], dict[str, int]] = {}  # by slot and attempt
        self._staleness: list[int] = []
        self._dropped = 0

    def _refuse_long_chunks(self) -> None:
        """A delivery, and the row before it that may end an episode, must fit a lane of replay."""
        wide = self.buffer_setup
        if not self._on_policy and self._length + 1 >= wide.buffer.num_slots:
            raise ConfigError(
                f"a delivery of {self._length} steps does not fit replay, which holds "
                f"{wide.buffer.num_slots - 1} steps of each of {wide.num_envs} environments: raise "
                "buffer_size, or lower collector_chunk_steps"
            )

    @property
    def _length(self) -> int:
        """Iterations of an order."""
        if isinstance(self._needs, RolloutNeeds):
            return self._needs.horizon
        update_schedule = UpdateSchedule.of(self._needs, self.setup.num_envs)
        block = update_schedule.block_iterations if update_schedule.regular else 1
        wanted = self._cluster.collector_chunk_steps or USUAL_CHUNK
        return block * max(1, round(wanted / block))

    @cached_property
    def collectors(self) -> Collectors:
        """Started when they are first needed, once it is known whether a checkpoint is loaded."""
        return self._start_collectors([0] * max(self._cluster.collectors, 1))

    def _start_collectors(self, attempts: list[int]) -> Collectors:
        return Collectors(self._ray, self._cluster, self._recipe, attempts)

    def advance(self, iterations: int) -> None:
        stop, collectors = self.position.iterations + iterations, self.collectors
        collectors.supervisor.reset_timeouts()
        while self.position.iterations < stop and not self.interrupted:
            self.give_orders()
            if collectors.ordered():
                self.take_in(collectors.deliveries())
            if not self._in_rounds:
                while self.arrived and not self.interrupted:
                    self.learn_from([self.arrived.popleft()])
                    self.give_orders()
            elif not collectors.ordered() and not self._missing():
                self._learn_from_round()

    # -- orders -----------------------------------------------------------------------------

    def give_orders(self) -> None:
        """Order as much as may be in flight; in rounds, what the round still needs."""
        collectors, ahead = self.collectors, self._ahead()
        # A rollout must not wait behind another order: it would no longer be on-policy.
        for turn in range(1 if self._in_rounds or self._on_policy else self._cluster.in_flight):
            for slot in self._missing() if self._in_rounds else collectors.slots:
                length = self._next_length(ahead)
                if length and len(slot.calls) <= turn:
                    random = self.update_schedule.random(ahead)
                    collectors.order(slot, self.newest_policy(), self._version, length, random)
                    ahead += length

    def _ahead(self) -> int:
        """Iterations that are done, arrived or ordered."""
        arrived = sum(delivery.order.iterations for delivery in self.arrived)
        return self.position.iterations + self.collectors.ordered() + arrived

    def _next_length(self, ahead: int) -> int:
        """Iterations of the next order, when `ahead` are done or ordered."""
        if self.goal is None:
            return self._length
        if self._on_policy:  # rollouts are learned from as a whole, and rounds of them
            reached = self.position.iterations if self._in_rounds else ahead
            return self._length if reached < self.goal else 0
        return max(0, min(self._length, self.goal - ahead))

    def _missing(self) -> list[Slot]:
        """Return the slots whose steps a round still needs, and which have no order for them."""
        if not self._next_length(self._ahead()):
            return []
        arrived = {delivery.slot for delivery in self.arrived}
        slots = self.collectors.slots
        return [slot for slot in slots if not slot.calls and slot.index not in arrived]

    def newest_policy(self) -> Any:
        """Return a reference to the newest policy, which is published once a version."""
        if self._published is None:
            leaves = self.transport.form.policy_leaves(self.transport.policy())
            self._published = self.collectors.put([np.array(leaf) for leaf in leaves])
        return self._published

    # -- deliveries -------------------------------------------------------------------------

    def take_in(self, deliveries: Iterable[Delivery]) -> None:
        """Note what arrived, and drop deliveries that are too stale."""
        for delivery in deliveries:
            self._note_episodes(delivery)
            self._faults[delivery.slot, delivery.attempt] = delivery.faults
            order = delivery.order
            stale = 0 if order.random else self._version - order.version
            self._staleness.append(stale)
            if stale > self._cluster.staleness:
                self._dropped += order.iterations * self.setup.num_envs
                self.collectors.torn.add(delivery.slot)
            else:
                self.arrived.append(delivery)

    def _note_episodes(self, delivery: Delivery) -> None:
        """Count an episode to the step after its delivery, and to all of the seed's environments:
        a collector knows only its own steps and environments."""
        num_envs, now = self.setup.num_envs, time.perf_counter()
        step = (self.position.iterations + delivery.order.iterations) * num_envs
        for episode in delivery.episodes:
            env = delivery.slot * num_envs + (episode.env or 0)
            self._episodes.append(episode._replace(env=env, step=step, clock=now))

    def _learn_from_round(self) -> None:
        """Learn from the deliveries of a synchronous round, always in the same order."""
        deliveries = sorted(self.arrived, key=lambda delivery: delivery.slot)
        self.arrived.clear()
        for group in [deliveries] if self._on_policy else [[one] for one in deliveries]:
            self.learn_from(group)

    def learn_from(self, deliveries: list[Delivery]) -> None:
        """Add one delivery's steps, or a round's rollouts side by side, and do the updates that
        are due."""
        start = self.position.iterations
        self.position.iterations += sum(delivery.order.iterations for delivery in deliveries)
        # [K, iterations, N] each, to [K, iterations, all N].
        rows = np.concatenate([delivery.rows for delivery in deliveries], axis=2)
        first_lane = None
        if isinstance(self._needs, RolloutNeeds):
            count = self._needs.updates
        else:
            count = self.update_schedule.updates_between(start, self.position.iterations)
            rows, first_lane = self._padded(deliveries[0], rows)
        names, values = (), None
        if self.hyper_schedules is not None:
            names, values = self.hyper_schedules.names, self.hyper_schedules.over([self.steps])
        call = Call(count if self.workers is None else 0, names)
        self.transport.learn(rows, call, values, first_lane)
        if isinstance(self.workers, ShardWorkers):
            self.workers.add(deliveries[0].slot, Rows(as_bytes(rows), first_lane))
        if self.workers is not None and count:
            self.learner, self.experience = self.workers.learn(
                self.learner, self.experience, self.position.updates, count
            )
            if observed_last(self.setup.algorithm):
                self.learner = self._observe_rollout(self.learner, self.experience)
        self.position.updates += count
        self._version, self._published = self._version + 1, None

    def _padded(self, delivery: Delivery, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of one length, so that one program adds them all, and their first lane. The
        first row is no step: it ends the lane's open episode if these steps do not continue it."""
        num_seeds, iterations, num_envs = rows.shape
        padded = np.zeros((num_seeds, self._length + 1, num_envs), rows.dtype)
        padded[:, 1 : iterations + 1] = rows
        padded["last"][:, 0] = delivery.torn
        return padded, np.full(num_seeds, delivery.slot * num_envs, np.int32)

    # -- metrics and checkpoints --------------------------------------------------------------

    def episodes(self) -> list[EndedEpisode]:
        taken, self._episodes, self._known = self._episodes, [], 0
        # Some deliveries have not been learned from: their steps are not counted yet.
        taken = [episode._replace(step=min(episode.step, self.steps)) for episode in taken]
        # Within a round the collectors deliver in any order.
        return sorted(taken, key=lambda episode: (episode.step, episode.env))

    def new_episodes(self) -> list[EndedEpisode]:
        arrived, self._known = self._episodes[self._known :], len(self._episodes)
        return arrived

    def faults(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for faults in self._faults.values():
            total.update(faults)
        return dict(total)

    def cluster_metrics(self) -> dict[str, float]:
        """Metrics of the cluster for the log."""
        collectors, supervisor = self.collectors, self.collectors.supervisor
        facts = {
            "collectors": supervisor.started,
            "collectors_replaced": supervisor.replaced,
            "deliveries_lost": supervisor.lost,
            "deliveries_ignored": collectors.ignored,
            "transitions_dropped": self._dropped,
            "replay_ratio": self.position.updates / max(self.steps, 1),
        }
        facts |= describe_staleness("staleness", self._staleness)
        self._staleness = []
        if self.workers is not None:
            facts |= self.workers.metrics()
        return {name: float(value) for name, value in facts.items()}

    def move_experience(self, places: tuple[str, ...]) -> None:
        super().move_experience(places)
        if isinstance(self.workers, BatchWorkers):
            self.workers.use_buffer(self.buffer)

    def _experience_state_dict(self) -> StateDict:
        if isinstance(self.workers, ShardWorkers):
            return self.workers.state_dict()
        return super()._experience_state_dict()

    def _load_experience(self, arrays: StateDict) -> None:
        if isinstance(self.workers, ShardWorkers):
            self.workers.load_state_dict(arrays)
        else:
            super()._load_experience(arrays)

    def _acting_state_dict(self) -> StateDict:
        """Wait for what is in flight: a checkpoint holds it, and a resumed run learns from it."""
        collectors = self.collectors
        while collectors.ordered():
            self.take_in(collectors.deliveries())
        named = {"version": np.array(self._version), "episodes": pack_episodes(self._episodes)}
        states = collectors.supervisor.call_all("state_dict")
        for slot, state in zip(collectors.slots, states, strict=True):
            torn = np.array(slot.index in collectors.torn)
            about = {"attempt": np.array(slot.attempt), "torn": torn}
            named |= add_prefix(f"collector.{slot.index}", about | add_prefix("state", state or {}))
        for number, delivery in enumerate(self.arrived):
            order = delivery.order
            about = {
                "slot": np.array(delivery.slot),
                "order": np.array([order.version, order.iterations, order.random, delivery.torn]),
            }
            fields = {name: delivery.rows[name] for name in self._rows.names or ()}
            named |= add_prefix(f"arrived.{number}", about | add_prefix("rows", fields))
        return named

    def _load_acting(self, acting: StateDict) -> None:
        """Restart all collectors with their open episodes and noise. A collector that had been
        lost starts anew."""
        self._version = int(acting["version"])
        self._episodes = unpack_episodes(acting["episodes"], self.setup.num_seeds)
        self._known = len(self._episodes)
        slots = range(max(self._cluster.collectors, 1))
        stored = [select_prefix(acting, f"collector.{slot}") for slot in slots]
        states = [select_prefix(one, "state") for one in stored]
        attempts = [int(stored[slot]["attempt"]) + (not states[slot]) for slot in slots]
        self.collectors = collectors = self._start_collectors(attempts)
        goes_on = collectors.supervisor.call_all("load_state_dict", [(state,) for state in states])
        collectors.torn |= {slot for slot in slots if stored[slot]["torn"] or not goes_on[slot]}
        number = 0
        while one := select_prefix(acting, f"arrived.{number}"):
            version, iterations, random, torn = map(int, one["order"])
            order = Order(-1, version, iterations, bool(random))
            slot, rows = int(one["slot"]), pack_rows(self._rows, select_prefix(one, "rows"))
            about = (slot, attempts[slot], order, rows, [], {}, bool(torn))
            self.arrived.append(Delivery(*about))
            number += 1

    def _make_update_schedule(self) -> UpdateSchedule:
        """Let learning begin with the first step of a chunk: then the same number of updates is due
        after every chunk, and one program does them."""
        update_schedule = super()._make_update_schedule()
        begins = update_schedule.first_learning_iteration
        if begins == 0:
            return update_schedule
        begins = math.ceil((begins + 1) / self._length) * self._length
        return replace(update_schedule, first_learning_iteration=begins)

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self.transport.restart_counting(self.position.updates)

    def close(self) -> None:
        self.transport.close()
        if "collectors" in self.__dict__:
            self.collectors.supervisor.close()
        if self.workers is not None:
            self.workers.close()


def join(cluster: Cluster) -> Any:
    """Return a Ray that has cores for all processes of the cluster."""
    needed = cluster.remote * cluster.cpus_each
    ray = connect(cluster.address, needed)
    if cores(ray) < needed:
        raise ConfigError(
            f"{cluster.collectors} collectors and {cluster.gradient_workers} gradient workers need "
            f"{needed:g} cores, the cluster has {cores(ray):g}: ask for fewer, or lower cpus_each"
        )
    return ray
