"""What the host loop and the device loop have in common: the interface that a run uses."""

import abc
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from understudy.algorithms.on_policy import RolloutNeeds
from understudy.buffers import Buffer
from understudy.buffers.host_replay import is_of_host
from understudy.ops.schedules import Schedule
from understudy.state_dict import StateDict, add_prefix, load_state_dict, select_prefix, state_dict
from understudy.training.device_sharding import find_sharding
from understudy.training.hyper_schedules import HyperSchedules, check_names, per_seed
from understudy.training.initialization import begin, metric_names
from understudy.training.meter import LONGEST_ROW_OF_DISCARDS, Meter, diverged, read_meter
from understudy.training.program_cache import shared
from understudy.training.replay_placement import EVERYWHERE, choose, make
from understudy.training.seed_axis import INITIALIZATION, seed_keys
from understudy.training.setup import TrainingSetup as TrainingSetup
from understudy.training.snapshot import Position, Snapshot
from understudy.training.update import LearnerState
from understudy.training.update_schedule import UpdateSchedule
from understudy.types import ConfigError

_log = logging.getLogger("understudy.training")


@final
@dataclass
class Held:
    """A learner and its experience, as they are."""

    learner: LearnerState
    experience: Any  # the buffer's state

    def use_buffer(self, buffer: Buffer, experience: Any) -> None:
        self.experience = experience


class Trainer(abc.ABC):
    """Advances K seeds by iterations. Abstract; the final ones are the two loops."""

    places: ClassVar[tuple[str, ...]] = ("device",)  # where replay can be kept
    setup: TrainingSetup
    update_schedule: UpdateSchedule
    position: Position
    held: Any  # what has the `learner` and the `experience`, [seeds, ...] each
    buffer: Buffer
    hyper_schedules: HyperSchedules | None = None  # None where nothing is scheduled
    interrupted: bool = False  # set from outside: `advance` returns at the next opportunity
    goal: int | None = None  # set from outside: iterations beyond which nobody will ask for any

    @abc.abstractmethod
    def advance(self, iterations: int) -> None:
        """Train on: that many steps of every environment, and the updates they owe; fewer if
        `interrupted`."""

    @abc.abstractmethod
    def episodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per seed: returns and lengths of the episodes that ended since the last call."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments."""

    def faults(self) -> dict[str, int]:
        """What went wrong in environments and was survived, counted since the start."""
        return {}

    def facts(self) -> dict[str, float]:
        """What else a log should tell, since the last call."""
        return {}

    @property
    def learner(self) -> LearnerState:
        return self.held.learner

    @learner.setter
    def learner(self, learner: LearnerState) -> None:
        self.held.learner = learner

    @property
    def experience(self) -> Any:
        return self.held.experience

    @experience.setter
    def experience(self, experience: Any) -> None:
        self.held.experience = experience

    def schedule(self, schedules: Mapping[str, Schedule]) -> None:
        """Let hyper-parameters follow these from now on (and the config's own, where these name
        no other). Curves without a length of their own span the run's horizon."""
        config = self.setup.algorithm.config
        wanted = {**config.schedules(), **schedules}
        check_names(wanted, self.learner.state.hyper, config)
        num_seeds = self.setup.num_seeds
        self.hyper_schedules = (
            HyperSchedules(wanted, self.position.horizon, num_seeds, config) if wanted else None
        )

    def begin_training(self, total: int) -> None:
        """Choose what depends on the length of the first training, and say so if a training up to
        step `total` would hardly learn."""
        if not self.position.first_training and not self.position.iterations:
            self.position.first_training = total
            self.update_schedule = self._make_update_schedule()
        first = self.update_schedule.first_update_iteration * self.setup.num_envs
        if self.position.iterations == 0 and first > total // 2:
            learns = "and so learns little" if first <= total else "and so learns nothing"
            _log.warning(
                "the first update follows step %s of a training that ends at step %s, %s: train "
                "longer, or lower %s", f"{first:,}", f"{total:,}", learns, self._waits_for(),
            )  # fmt: skip

    def _waits_for(self) -> str:
        """The settings that put off the first update."""
        on_policy = self.setup.algorithm.needs.on_policy
        return "horizon or num_envs" if on_policy else "min_buffer_size or update_every"

    def _make_update_schedule(self) -> UpdateSchedule:
        needs = self.setup.algorithm.needs
        return UpdateSchedule.of(needs, self.setup.num_envs, self.position.first_training)

    def set(self, values: Mapping[str, Any]) -> None:
        """Change hyper-parameters now, for all seeds or for each; their schedules end."""
        state, config = self.learner.state, self.setup.algorithm.config
        check_names(values, state.hyper, config)
        new = {name: per_seed(name, value, self.setup.num_seeds) for name, value in values.items()}
        for name, each in new.items():
            for value in each:
                config.check_moving(name, float(value))
        if self.hyper_schedules is not None:
            self.hyper_schedules.end(values)
        hyper = {**state.hyper, **{name: jnp.asarray(each) for name, each in new.items()}}
        self.learner = self.learner._replace(state=state._replace(hyper=hyper))

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Take over networks, [seeds, ...] each; targets follow."""
        state = self.setup.algorithm.set_weights(self.learner.state, weights)
        self.learner = self.learner._replace(state=state)

    def snapshot(self, world: bool = True) -> Snapshot:
        """A copy of everything on the host, between two iterations."""
        return Snapshot(
            position=replace(self.position),
            learner=state_dict(self.learner),
            world=self._world_state_dict() if world else None,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go on, bit for bit, where the snapshot was taken.

        Where it holds no world the environments begin anew, learning waits until the ring holds
        `min_buffer_size` transitions again, and nothing is owed for the gap."""
        if snapshot.world is None:
            position = replace(snapshot.position, refilled_from=snapshot.position.iterations)
        else:
            position = replace(snapshot.position)
            self._load_world(snapshot.world)
        self.learner = load_state_dict(self.learner, snapshot.learner)
        self.position = position
        self.update_schedule = self._make_update_schedule()
        if position.refilled_from:
            self.update_schedule = self.update_schedule.refilling(position.refilled_from)

    def _world_state_dict(self) -> StateDict:
        """Experience, and what the loop itself adds to it."""
        arrays = add_prefix("experience", self._experience_state_dict())
        return arrays | add_prefix("acting", self._acting_state_dict())

    def _load_world(self, world: StateDict) -> None:
        self._load_experience(select_prefix(world, "experience"))
        self._load_acting(select_prefix(world, "acting"))

    def _experience_state_dict(self) -> StateDict:
        return self.buffer.state_dict(self.experience)

    def _load_experience(self, arrays: StateDict) -> None:
        """Kept where it was, even if there would be more, or less, space elsewhere by now."""
        if is_of_host(arrays) != self.buffer.fed:
            self._move_experience(EVERYWHERE[1:] if is_of_host(arrays) else EVERYWHERE[:1])
        self.experience = self.buffer.load_state_dict(self.experience, arrays)

    def _move_experience(self, places: tuple[str, ...]) -> None:
        """Begin with an empty buffer in the first of these places that can hold it."""
        self.buffer, experience = make(self._wide_setup, choose(self._wide_setup, places))
        self.held.use_buffer(self.buffer, experience)

    @abc.abstractmethod
    def _acting_state_dict(self) -> StateDict:
        """What acting and stepping have come to: environments, memory, random keys."""

    @abc.abstractmethod
    def _load_acting(self, acting: StateDict) -> None: ...

    def settle(self) -> None:
        """Wait until the device has done what it was given."""
        jax.block_until_ready(self.learner)

    @property
    def steps(self) -> int:
        """Transitions per seed so far."""
        return self.position.iterations * self.setup.num_envs

    def diverged(self) -> np.ndarray:
        """[seeds]: which of them have diverged and are frozen."""
        return diverged(jax.device_get(self.learner.meter))

    def policy(self) -> Any:
        """The acting slice of every seed."""
        return self.setup.algorithm.policy(self.learner.state)

    def metrics(self) -> dict[str, np.ndarray]:
        """Per-seed means of the update metrics since the last call; what was not computed
        in that time is absent. A seed that has diverged is told of once."""
        meter = jax.device_get(self.learner.meter)
        means, fresh = read_meter(meter, self._metric_names)
        for seed_index in set(np.flatnonzero(diverged(meter)).tolist()) - self._told_of:
            self._told_of.add(seed_index)
            _log.warning(
                "seed %d diverged before step %d: its last %d updates were not finite. It is "
                "frozen, and the other seeds go on", self.setup.seed + seed_index, self.steps,
                LONGEST_ROW_OF_DISCARDS,
            )  # fmt: skip
        self.learner = self.learner._replace(meter=jax.device_put(Meter(*fresh)))
        return means

    def _start(self, buffer: Buffer | None = None) -> tuple[LearnerState, Any]:
        """Initial states and an empty buffer, with a seed axis; the setup's own buffer, unless
        one is given."""
        algorithm, spec, num_seeds = (
            self.setup.algorithm,
            self.setup.spec,
            self.setup.num_seeds,
        )
        needs, num_envs = algorithm.needs, self.setup.num_envs
        rollouts = isinstance(needs, RolloutNeeds)
        if rollouts and needs.horizon * num_envs % needs.minibatches:
            raise ConfigError(
                f"a rollout of {needs.horizon} steps of {num_envs} environments cannot be split "
                f"into {needs.minibatches} equal minibatches"
            )
        self._wide_setup = self.setup  # what the buffer was made for
        self._sharding = find_sharding(self.setup)
        if buffer is None:
            place = choose(self.setup, self.places)
            self.buffer, experience = make(self.setup, place, self._sharding)
        else:
            self.buffer, experience = buffer, buffer.init()
        self.position = Position()
        self.update_schedule = self._make_update_schedule()
        self._told_of: set[int] = set()  # seeds that have diverged
        self._metric_names = metric_names(algorithm, spec, num_envs)
        keys = seed_keys(self.setup.seed, num_seeds, INITIALIZATION)
        first_learner = _begin_program(self.setup.unseeded, self._sharding)
        learner = first_learner(jax.device_put(keys, self._sharding))
        return learner, experience


def learner_shapes(setup: TrainingSetup) -> LearnerState:
    """What a trainer's learner looks like, before there is one."""
    keys = jax.ShapeDtypeStruct((setup.num_seeds, 2), np.uint32)
    return jax.eval_shape(_begin_program(setup.unseeded, None), keys)


@shared
def _begin_program(setup: TrainingSetup, sharding: NamedSharding | None) -> Any:
    """From a key for each seed to learners that have learned nothing."""
    names = metric_names(setup.algorithm, setup.spec, setup.num_envs)
    initial = partial(begin, setup.algorithm, setup.spec, setup.num_envs, len(names))
    return jax.jit(jax.vmap(initial), out_shardings=sharding)
