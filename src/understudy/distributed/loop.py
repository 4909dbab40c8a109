"""The cluster loop: collectors far away step environments while the learner updates.

One turn is

    take in deliveries → add their steps and do the updates these owe → order more, by the newest
    policy

Updates follow from the transitions that were taken in, by the same update schedule as in the host
loop, so the ratio of updates to data is held whatever the collectors do. Each collector has only so
many orders at a time, so neither side can get far ahead of the other.
"""

from collections import deque
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from understudy.algorithms.on_policy import RolloutNeeds
from understudy.buffers import RemoteReplayBuffer
from understudy.distributed.collectors import Delivery, Order, Recipe, RemoteCollector
from understudy.distributed.config import Cluster, widened
from understudy.distributed.connect import connect, cores
from understudy.distributed.gradient_workers import GradientWorkers, check
from understudy.distributed.local_collector import LocalCollectors
from understudy.distributed.replay_shards import ShardedWorkers
from understudy.distributed.supervisor import Slot, Supervisor
from understudy.envs.fault_guard import Guard
from understudy.envs.make import EnvSource
from understudy.state_dict import StateDict, add_prefix, select_prefix
from understudy.training.replay_placement import EVERYWHERE
from understudy.training.setup import TrainingSetup
from understudy.training.snapshot import Snapshot
from understudy.training.step_packing import as_bytes, rows_of, step_rows
from understudy.training.trainer import Trainer
from understudy.training.transport import Rows, Transport
from understudy.training.update_schedule import UpdateSchedule
from understudy.types import ConfigError

USUAL_FRAGMENT = 20  # iterations; divides what logs and evaluations are usually asked at


@final
class ClusterTrainer(Trainer):
    """Trains K seeds on K × N environments of every collector. An iteration is one step of one
    collector's environments."""

    places: ClassVar[tuple[str, ...]] = EVERYWHERE

    def __init__(self, setup: TrainingSetup, source: EnvSource, guard: Guard, cluster: Cluster):
        self._cluster = cluster
        self._needs = setup.algorithm.needs
        self._on_policy = self._needs.on_policy
        self._together = cluster.mode == "sync"
        if self._on_policy and not self._together and setup.algorithm.config.normalize_rewards:
            raise ConfigError(
                "normalize_rewards follows the open episodes of all environments at once: rollouts "
                "that come one by one cannot have it; use mode='sync'"
            )
        # Experience and learner have a lane for every environment that there is.
        self.setup = widened(setup, cluster)
        if cluster.gradient_workers:
            check(self.setup, cluster)
        self._rows = step_rows(setup.algorithm, setup.spec)
        sharded = cluster.replay == "sharded"
        started = self._start(RemoteReplayBuffer(setup.spec) if sharded else None)
        self.held = self.transport = Transport(setup.algorithm, self.buffer, self._rows, *started)
        self.setup = setup
        self.update_schedule = self._make_update_schedule()
        self._refuse_long_chunks()
        self._ray = join(cluster)
        self._workers: GradientWorkers | ShardedWorkers | None = None
        if cluster.gradient_workers:
            if sharded:
                self._workers = ShardedWorkers(self._wide_setup, cluster)
            else:
                self._workers = GradientWorkers(self._wide_setup, cluster, self.buffer)
        self._recipe = Recipe(setup, source, guard)
        self._sent = self._ray.put(sendable(self._recipe)) if cluster.collectors else None
        self._actor = self._ray.remote(num_cpus=cluster.cpus_each, max_restarts=0)(RemoteCollector)
        self._supervisor: Supervisor | LocalCollectors | None = (
            None  # not before it is known who is to come back
        )
        self._arrived: deque[Delivery] = deque()  # taken in, not yet learned from
        self._version, self._published = 0, None
        self._episodes: list[list[tuple[np.ndarray, np.ndarray]]] = []
        self._faults: dict[tuple[int, int], dict[str, int]] = {}  # of every collector that was
        self._staleness: list[int] = []
        self._dropped = 0

    def _refuse_long_chunks(self) -> None:
        """A delivery, and the row before it that may end an episode, must fit a lane of replay."""
        wide = self._wide_setup
        if not self._on_policy and self._length + 1 >= wide.buffer.num_slots:
            raise ConfigError(
                f"a delivery of {self._length} steps does not fit replay, which holds "
                f"{wide.buffer.num_slots - 1} steps of each of {wide.num_envs} environments: raise "
                "buffer_size, or lower fragment"
            )

    @property
    def _length(self) -> int:
        """Iterations of an order."""
        if isinstance(self._needs, RolloutNeeds):
            return self._needs.horizon
        update_schedule = UpdateSchedule.of(self._needs, self.setup.num_envs)
        block = update_schedule.block_iterations if update_schedule.regular else 1
        wanted = self._cluster.fragment or USUAL_FRAGMENT
        return block * max(1, round(wanted / block))

    def advance(self, iterations: int) -> None:
        stop, pool = self.position.iterations + iterations, self._pool()
        pool.rested()
        while self.position.iterations < stop and not self.interrupted:
            self._give_orders(pool)
            if pool.ordered():
                self._take_in(pool, pool.deliveries())
            if not self._together:
                while self._arrived and not self.interrupted:
                    self._learn([self._arrived.popleft()])
                    self._give_orders(pool)
            elif not pool.ordered() and not self._missing(pool):
                self._learn_in_turn()

    def _pool(self) -> Supervisor | LocalCollectors:
        if self._supervisor is None:
            self._supervisor = self._engage([0] * max(self._cluster.collectors, 1))
        return self._supervisor

    def _engage(self, attempts: list[int]) -> Supervisor | LocalCollectors:
        if not self._cluster.collectors:
            return LocalCollectors(self._recipe, attempts[0])

        def hire(place: int, attempt: int) -> Any:
            return self._actor.remote(self._sent, place, attempt)

        return Supervisor(self._ray, hire, attempts, self._cluster.patience)

    # -- orders -----------------------------------------------------------------------------

    def _give_orders(self, pool: Supervisor | LocalCollectors) -> None:
        """As much as may be in flight; where all wait for each other, what a round still needs."""
        waiting = sum(delivery.order.iterations for delivery in self._arrived)
        ahead = self.position.iterations + pool.ordered() + waiting
        # What is on policy must not wait behind another order.
        for turn in range(1 if self._together or self._on_policy else self._cluster.in_flight):
            for slot in self._missing(pool) if self._together else pool.slots:
                length = self._next_length(ahead)
                if length and len(slot.orders) <= turn:
                    random = self.update_schedule.random(ahead)
                    pool.order(slot, self._policy(), self._version, length, random)
                    ahead += length

    def _next_length(self, ahead: int) -> int:
        """Iterations of the next order, when `ahead` are done or ordered."""
        if self.goal is None:
            return self._length
        if self._on_policy:  # rollouts are learned from as a whole, and rounds of them
            reached = self.position.iterations if self._together else ahead
            return self._length if reached < self.goal else 0
        return max(0, min(self._length, self.goal - ahead))

    def _missing(self, pool: Supervisor | LocalCollectors) -> list[Slot]:
        """Whose steps a round still needs, and who was not asked for them, or has lost them."""
        here = {delivery.place for delivery in self._arrived}
        waiting = sum(delivery.order.iterations for delivery in self._arrived)
        ahead = self.position.iterations + pool.ordered() + waiting
        missing = [slot for slot in pool.slots if not slot.orders and slot.place not in here]
        return missing if self._next_length(ahead) else []

    def _policy(self) -> Any:
        """A reference to the newest policy. It is put where all can read it once a version."""
        if self._published is None:
            form = self.transport.form
            leaves = form.policy_leaves(self.transport.policy())
            copies = [np.array(leaf) for leaf in leaves]
            self._published = self._ray.put(copies) if self._cluster.collectors else copies
        return self._published

    # -- deliveries -------------------------------------------------------------------------

    def _take_in(self, pool: Supervisor | LocalCollectors, deliveries: list[Delivery]) -> None:
        dropped = set()  # places
        for delivery in deliveries:
            self._episodes.append(delivery.episodes)
            self._faults[delivery.place, delivery.attempt] = delivery.faults
            order = delivery.order
            stale = 0 if order.random else self._version - order.version
            self._staleness.append(stale)
            if stale > self._cluster.staleness:
                self._dropped += order.iterations * self.setup.num_envs
                dropped.add(delivery.place)
            else:
                torn = delivery.torn or delivery.place in dropped
                dropped.discard(delivery.place)
                self._arrived.append(delivery._replace(torn=torn))
        for place in dropped:
            pool.slots[place].torn = True

    def _learn_in_turn(self) -> None:
        """What a synchronous round has brought, always in the same order."""
        deliveries = sorted(self._arrived, key=lambda delivery: delivery.place)
        self._arrived.clear()
        if self._needs.on_policy:
            self._learn(deliveries)
        else:
            for delivery in deliveries:
                self._learn([delivery])

    def _learn(self, deliveries: list[Delivery]) -> None:
        """Add one delivery's steps, or a round's rollouts side by side, and do the updates owed."""
        start = self.position.iterations
        self.position.iterations += sum(delivery.order.iterations for delivery in deliveries)
        # [K, iterations, N] each, to [K, iterations, all N].
        rows = np.concatenate([delivery.rows for delivery in deliveries], axis=2)
        first_lane = None
        if isinstance(self._needs, RolloutNeeds):
            count = self._needs.updates
        else:
            spent = range(start, self.position.iterations)
            count = sum(self.update_schedule.updates_after(iteration) for iteration in spent)
            rows, first_lane = self._padded(deliveries[0], rows)
        names, values = (), None
        if self.hyper_schedules is not None:
            names, values = self.hyper_schedules.names, self.hyper_schedules.over([self.steps])
        if self._workers is None:
            self.transport.learn(rows, count, names, values, first_lane=first_lane)
        else:
            self.transport.learn(rows, 0, names, values, first_lane=first_lane)
            if isinstance(self._workers, ShardedWorkers):
                self._workers.add(deliveries[0].place, Rows(as_bytes(rows), first_lane))
            if count:
                self.learner, self.experience = self._workers.learn(
                    self.learner, self.experience, self.position.updates, count
                )
        self.position.updates += count
        self._version, self._published = self._version + 1, None

    def _padded(self, delivery: Delivery, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows all of one length, so that there is one program for them, and their first lane. The
        first row is no step: it ends the lane's open episode if these steps do not go on with
        it."""
        num_seeds, iterations, num_envs = rows.shape
        padded = np.zeros((num_seeds, self._length + 1, num_envs), rows.dtype)
        padded[:, 1 : iterations + 1] = rows
        padded["last"][:, 0] = delivery.torn
        return padded, np.full(num_seeds, delivery.place * num_envs, np.int32)

    # -- what is told, and what is kept ------------------------------------------------------

    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        taken, self._episodes = self._episodes, []
        return [
            (
                np.concatenate([np.zeros(0), *(each[seed_index][0] for each in taken)]),
                np.concatenate([np.zeros(0, np.int64), *(each[seed_index][1] for each in taken)]),
            )
            for seed_index in range(self.setup.num_seeds)
        ]

    def faults(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for faults in self._faults.values():
            for name, count in faults.items():
                total[name] = total.get(name, 0) + count
        return total

    def facts(self) -> dict[str, float]:
        """The line that says how the cluster is doing."""
        pool = self._pool()
        facts = {
            "collectors": pool.alive,
            "collectors_replaced": pool.replaced,
            "deliveries_lost": pool.lost,
            "deliveries_ignored": pool.ignored,
            "transitions_dropped": self._dropped,
            "replay_ratio": self.position.updates / max(self.steps, 1),
        }
        if self._staleness:
            facts["staleness"] = float(np.mean(self._staleness))
            facts["staleness_max"] = max(self._staleness)
            self._staleness = []
        if self._workers is not None:
            facts |= self._workers.facts()
        return {name: float(value) for name, value in facts.items()}

    def _move_experience(self, places: tuple[str, ...]) -> None:
        super()._move_experience(places)
        if isinstance(self._workers, GradientWorkers):
            self._workers.use_buffer(self.buffer)

    def _experience_state_dict(self) -> StateDict:
        if isinstance(self._workers, ShardedWorkers):
            return self._workers.state_dict()
        return super()._experience_state_dict()

    def _load_experience(self, arrays: StateDict) -> None:
        if isinstance(self._workers, ShardedWorkers):
            self._workers.load_state_dict(arrays)
        else:
            super()._load_experience(arrays)

    def _acting_state_dict(self) -> StateDict:
        """Waits for what is in flight: it is kept, and learned from when the run goes on."""
        pool = self._pool()
        while pool.ordered():
            self._take_in(pool, pool.deliveries())
        named = {"version": np.array(self._version)}
        for slot, kept in zip(pool.slots, pool.ask("state_dict"), strict=True):
            told = {"attempt": np.array(slot.attempt), "torn": np.array(slot.torn)}
            named |= add_prefix(f"collector.{slot.place}", told | add_prefix("kept", kept or {}))
        for number, delivery in enumerate(self._arrived):
            order = delivery.order
            told = {
                "place": np.array(delivery.place),
                "order": np.array([order.version, order.iterations, order.random, delivery.torn]),
            }
            fields = {name: delivery.rows[name] for name in self._rows.fields}
            named |= add_prefix(f"arrived.{number}", told | add_prefix("rows", fields))
        return named

    def _load_acting(self, acting: StateDict) -> None:
        """Everyone comes back with the episodes and the noise that they had; who had been lost
        begins anew."""
        self._version = int(acting["version"])
        places = range(max(self._cluster.collectors, 1))
        stored = [select_prefix(acting, f"collector.{place}") for place in places]
        kept = [select_prefix(one, "kept") for one in stored]
        attempts = [int(one["attempt"]) + (not old) for one, old in zip(stored, kept, strict=True)]
        self._supervisor = pool = self._engage(attempts)
        pool.load_state_dict(kept)
        for slot, one, old in zip(pool.slots, stored, kept, strict=True):
            slot.torn = bool(one["torn"]) or not old
        number = 0
        while one := select_prefix(acting, f"arrived.{number}"):
            version, iterations, random, torn = map(int, one["order"])
            order = Order(-1, version, iterations, bool(random))
            empty = [(np.zeros(0), np.zeros(0, np.int64))] * self.setup.num_seeds
            place = int(one["place"])
            rows = rows_of(self._rows.dtype, select_prefix(one, "rows"))
            delivery = Delivery(place, attempts[place], order, rows, empty, {}, bool(torn))
            self._arrived.append(delivery)
            number += 1

    def _make_update_schedule(self) -> UpdateSchedule:
        return whole_chunks(super()._make_update_schedule(), self._length)

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self.transport.restart_counting(self.position.updates)

    def close(self) -> None:
        self.transport.close()
        if self._supervisor is not None:
            self._supervisor.close()
        if self._workers is not None:
            self._workers.close()


def whole_chunks(update_schedule: UpdateSchedule, length: int) -> UpdateSchedule:
    """Learning begins with the first step of a chunk: all of them then owe as many updates,
    and one program does."""
    begins = update_schedule.first_learning_iteration
    if begins == 0:
        return update_schedule
    return replace(update_schedule, first_learning_iteration=-(-(begins + 1) // length) * length)


def join(cluster: Cluster) -> Any:
    """A Ray that has room for all that is asked for."""
    needed = cluster.remote * cluster.cpus_each
    ray = connect(cluster.address, needed)
    if cores(ray) < needed:
        raise ConfigError(
            f"{cluster.collectors} collectors and {cluster.gradient_workers} gradient workers need "
            f"{needed:g} cores, the cluster has {cores(ray):g}: ask for fewer, or lower cpus_each"
        )
    return ray


def sendable(recipe: Recipe) -> Recipe:
    """Refuses, before anything starts, what cannot travel."""
    import cloudpickle

    try:
        cloudpickle.dumps(recipe)
    except Exception as error:
        raise ConfigError(
            "these environments cannot be sent to collectors: give an id, or a callable that makes "
            f"one ({type(error).__name__}: {error})"
        ) from error
    return recipe
