"""The interface of a trainer, which a run uses, and what the host and the device loop share."""

import abc
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from understudy.algorithms.on_policy import RolloutNeeds
from understudy.buffers import Buffer
from understudy.buffers.host_replay import is_of_host
from understudy.envs.base import HostEnvs
from understudy.envs.env_changes import EnvChanges
from understudy.ops.schedules import Schedule
from understudy.state_dict import StateDict, add_prefix, load_state_dict, select_prefix, state_dict
from understudy.training.devices import find_sharding
from understudy.training.hyper_schedules import HyperSchedules, check_names, per_seed
from understudy.training.initialization import init_program, metric_names
from understudy.training.open_episodes import EndedEpisode
from understudy.training.replay_placement import EVERYWHERE, choose, make
from understudy.training.seed_axis import INITIALIZATION, seed_keys
from understudy.training.setup import TrainingSetup as TrainingSetup
from understudy.training.snapshot import Position, Snapshot
from understudy.training.update import MOST_DISCARDS, LearnerState, is_frozen, read_meter
from understudy.training.update_schedule import UpdateSchedule
from understudy.types import ConfigError

_log = logging.getLogger("understudy.training")


@final
@dataclass
class States:
    """The states of the learner and of the buffer, [seeds, ...] each."""

    learner: LearnerState
    experience: Any

    @property
    def version(self) -> Any:
        return self.learner

    def use_buffer(self, buffer: Buffer, experience: Any) -> None:
        self.experience = experience


class Trainer(abc.ABC):
    """Advances K seeds by iterations. Abstract; the final ones are the two loops."""

    places: ClassVar[tuple[str, ...]] = ("device",)  # where replay can be stored
    setup: TrainingSetup
    buffer_setup: TrainingSetup  # has the environments of all lanes of the buffer
    sharding: NamedSharding | None
    update_schedule: UpdateSchedule
    position: Position
    buffer: Buffer
    states: Any  # `States`, or a `Transport`, which has the same attributes
    hyper_schedules: HyperSchedules | None = None  # None where nothing is scheduled
    host_envs: HostEnvs | None = None
    interrupted: bool = False  # set from outside: `advance` returns at the next opportunity
    goal: int | None = None  # the iterations at which training will end
    chunk_iterations: int = 1  # `advance` loses no time if it returns at a multiple of these
    least_iterations: int = 1  # `advance` loses much time if it does fewer

    @abc.abstractmethod
    def advance(self, iterations: int) -> None:
        """Do that many steps of every environment and the updates they owe; fewer if
        `interrupted`."""

    @abc.abstractmethod
    def episodes(self) -> list[EndedEpisode]:
        """The episodes that ended since the last call, in order."""

    @abc.abstractmethod
    def new_episodes(self) -> list[EndedEpisode]:
        """The episodes that ended since the last call, or since the last call of `episodes`, which
        returns them too."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments."""

    def faults(self) -> dict[str, int]:
        """Faults of environments that were survived, counted since the start."""
        return {}

    def cluster_metrics(self) -> dict[str, float]:
        """Metrics of the cluster since the last call, for the log."""
        return {}

    @property
    def learner(self) -> LearnerState:
        return self.states.learner

    @learner.setter
    def learner(self, learner: LearnerState) -> None:
        self.states.learner = learner

    @property
    def version(self) -> Any:
        """An object that is replaced whenever the learner's state is. Reading it runs no program,
        as reading the learner may."""
        return self.states.version

    @property
    def experience(self) -> Any:
        return self.states.experience

    @experience.setter
    def experience(self, experience: Any) -> None:
        self.states.experience = experience

    def schedule(self, schedules: Mapping[str, Schedule]) -> None:
        """Let hyper-parameters follow these from now on (and the config's own, where these name
        no other). Curves without a length of their own span the run's horizon."""
        config = self.setup.algorithm.config
        wanted = {**config.schedules(), **schedules}
        check_names(wanted, self.learner.state.hyper, config)
        self.hyper_schedules = None
        if wanted:
            length, num_seeds = self.position.horizon, self.setup.num_seeds
            self.hyper_schedules = HyperSchedules(wanted, length, num_seeds, config)

    def changeable_envs(self) -> HostEnvs:
        """Return the environments, which `agent.envs` may change."""
        if self.host_envs is None:
            raise ConfigError(
                "agent.envs changes Gymnasium environments of this process and its env_workers: "
                "native environments cannot change, and collectors have theirs in other processes"
            )
        return self.host_envs

    @property
    def env_changes(self) -> dict[str, Any]:
        """The changes of the environments so far, for checkpoints."""
        return (EnvChanges() if self.host_envs is None else self.host_envs.changes).state_dict()

    def begin_training(self, total: int) -> None:
        """Choose defaults that depend on the length of the first training, and warn if a training
        up to step `total` would hardly learn."""
        self.interrupted, self.goal = False, -(-total // self.setup.num_envs)
        if not self.position.first_training and not self.position.iterations:
            self.position.first_training = total
            self.update_schedule = self._make_update_schedule()
        first = self.update_schedule.first_update_iteration * self.setup.num_envs
        if self.position.iterations == 0 and first > total // 2:
            learns = "and so learns little" if first <= total else "and so learns nothing"
            on_policy = self.setup.algorithm.needs.on_policy
            lower = "horizon or num_envs" if on_policy else "min_buffer_size or update_every"
            _log.warning(
                "the first update follows step %s of a training that ends at step %s, %s: train "
                "longer, or lower %s", f"{first:,}", f"{total:,}", learns, lower,
            )  # fmt: skip

    def _make_update_schedule(self) -> UpdateSchedule:
        needs, position = self.setup.algorithm.needs, self.position
        schedule = UpdateSchedule.of(needs, self.setup.num_envs, position.first_training)
        return schedule.refilling(position.refilled_from)

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
        """Replace networks, [seeds, ...] each; targets follow."""
        state = self.setup.algorithm.set_weights(self.learner.state, weights)
        self.learner = self.learner._replace(state=state)

    def snapshot(self, world: bool = True) -> Snapshot:
        """Copy everything to the host, between two iterations."""
        arrays = None
        if world:
            arrays = add_prefix("experience", self._experience_state_dict())
            arrays |= add_prefix("acting", self._acting_state_dict())
        position = replace(self.position)
        return Snapshot(position, state_dict(self.learner), arrays, self.env_changes)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue, bit for bit, where the snapshot was taken.

        Without a world the environments begin anew, learning waits until the buffer holds
        `min_buffer_size` transitions again, and no updates are owed for the gap."""
        position, changes = replace(snapshot.position), EnvChanges(**snapshot.env_changes)
        if changes.total:
            self.changeable_envs().use_changes(changes)
        if snapshot.world is None:
            position.refilled_from = position.iterations
        else:
            self._load_experience(select_prefix(snapshot.world, "experience"))
            self._load_acting(select_prefix(snapshot.world, "acting"))
        self.learner = load_state_dict(self.learner, snapshot.learner)
        self.position = position
        self.update_schedule = self._make_update_schedule()

    def _experience_state_dict(self) -> StateDict:
        return self.buffer.state_dict(self.experience)

    def _load_experience(self, arrays: StateDict) -> None:
        """Load replay to where it was stored before, even if other places have more space now."""
        if is_of_host(arrays) != self.buffer.external:
            self.move_experience(EVERYWHERE[1:] if is_of_host(arrays) else EVERYWHERE[:1])
        self.experience = self.buffer.load_state_dict(self.experience, arrays)

    def move_experience(self, places: tuple[str, ...]) -> None:
        """Use an empty buffer in the first of these places that can hold it."""
        self.buffer, empty = make(self.buffer_setup, choose(self.buffer_setup, places))
        self.states.use_buffer(self.buffer, empty)

    @abc.abstractmethod
    def _acting_state_dict(self) -> StateDict:
        """The state of acting and stepping: environments, recurrent states, random keys."""

    @abc.abstractmethod
    def _load_acting(self, acting: StateDict) -> None: ...

    def block_until_ready(self) -> None:
        """Wait until the device has done what it was given."""
        jax.block_until_ready(self.learner)

    @property
    def steps(self) -> int:
        """Transitions per seed so far."""
        return self.position.iterations * self.setup.num_envs

    def diverged(self) -> np.ndarray:
        """[seeds]: which of them have diverged and are frozen."""
        return is_frozen(jax.device_get(self.learner.meter))

    def policy(self) -> Any:
        """The acting slice of every seed."""
        return self.setup.algorithm.policy(self.learner.state)

    def metrics(self) -> dict[str, np.ndarray]:
        """Per-seed means of the update metrics since the last call; what was not computed
        in that time is absent. Warns once of each seed that has diverged."""
        meter = jax.device_get(self.learner.meter)
        means, fresh = read_meter(meter, self._metric_names)
        for seed_index in set(np.flatnonzero(is_frozen(meter)).tolist()) - self._reported:
            self._reported.add(seed_index)
            _log.warning(
                "seed %d diverged before step %d: its last %d updates were not finite. It is "
                "frozen, and the other seeds go on", self.setup.seed + seed_index, self.steps,
                MOST_DISCARDS,
            )  # fmt: skip
        self.learner = self.learner._replace(meter=jax.device_put(fresh))
        return means

    def initialize(
        self, setup: TrainingSetup, buffer: Buffer | None = None
    ) -> tuple[LearnerState, Any]:
        """Set up everything but environments; returns the first states of the learner and of the
        buffer, [seeds, ...] each. The buffer is the setup's own, unless one is given."""
        algorithm, num_envs, needs = setup.algorithm, setup.num_envs, setup.algorithm.needs
        if isinstance(needs, RolloutNeeds) and needs.parts(num_envs) % needs.minibatches:
            steps = "all" if needs.memory else needs.horizon
            raise ConfigError(
                f"a rollout of {steps} steps of {num_envs} environments cannot be split into "
                f"{needs.minibatches} equal minibatches"
            )
        self.setup = self.buffer_setup = setup
        self.sharding = find_sharding(setup)
        if buffer is None:
            buffer, experience = make(setup, choose(setup, self.places), self.sharding)
        else:
            experience = buffer.init()
        self.buffer, self.position = buffer, Position()
        self.update_schedule = self._make_update_schedule()
        self._reported: set[int] = set()  # seeds that have diverged
        self._metric_names = metric_names(algorithm, setup.spec, num_envs)
        keys = jax.device_put(seed_keys(setup.seed, setup.num_seeds, INITIALIZATION), self.sharding)
        return init_program(setup.unseeded, self.sharding)(keys), experience
