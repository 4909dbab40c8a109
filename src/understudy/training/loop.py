"""The host loop: Gymnasium environments step on the CPU while the device updates.

The loop handles steps in chunks of `chunk_steps` steps of every environment. For each chunk it does

    policy → start learning from the chunk before → act and step, to the end of the chunk

Learning runs while the environments step: chunk c acts with the policy that has learned from chunk
c − 2. That lag is fixed, so neither side waits and runs are reproducible. Chunks begin at multiples
of their length, counted from the beginning of the run. So a run that is resumed in mid-chunk equals
the uninterrupted run.

A rollout must be collected by the present policy: it is one chunk, and acting waits for the updates
from the chunk before.
"""

from typing import ClassVar, final

import jax
import numpy as np

from understudy.algorithms.on_policy import RolloutNeeds
from understudy.envs.base import HostEnvs
from understudy.state_dict import StateDict, add_prefix, load_state_dict, select_prefix, state_dict
from understudy.training.collector import Collector
from understudy.training.learner import Call
from understudy.training.open_episodes import EndedEpisode
from understudy.training.replay_placement import EVERYWHERE
from understudy.training.snapshot import Snapshot
from understudy.training.trainer import Trainer, TrainingSetup
from understudy.training.transport import Transport
from understudy.types import Tree


@final
class HostTrainer(Trainer):
    """Trains K seeds on K × N Gymnasium environments."""

    places: ClassVar[tuple[str, ...]] = EVERYWHERE

    def __init__(self, setup: TrainingSetup, envs: HostEnvs):
        states = self.initialize(setup)
        self.states = self.transport = Transport(setup, self.buffer, *states)
        self._on_policy = setup.algorithm.needs.on_policy
        self.chunk_iterations = self._choose_chunk_steps()
        self._lasting = self.chunk_iterations > 1 and not self._on_policy
        self.collector = Collector(
            setup, envs, self.policy(), self.transport.form.read_policy,
            self.transport.act_device,
            lasting=self._lasting,
        )  # fmt: skip
        self.host_envs = envs
        self._use_policy(self._newest_policy())

    def _choose_chunk_steps(self) -> int:
        """Steps of a chunk: a whole rollout, what was set, or what suits the device."""
        needs = self.setup.algorithm.needs
        if isinstance(needs, RolloutNeeds):
            return needs.horizon
        usual = needs.chunk_steps or self.transport.usual_chunk_steps
        return min(usual, self.buffer.num_slots - 1)

    def advance(self, iterations: int) -> None:
        self.collector.begin()
        for left in reversed(range(iterations)):
            if self.interrupted and not self.collector.has_acted:
                break
            now = self.position.iterations
            if now % self.chunk_iterations == 0:
                self._begin_chunk()
            elif not self.collector.has_acted:
                self.collector.act(self.update_schedule.random(now))
            # Within a chunk the next actions need no other policy.
            within = (now + 1) % self.chunk_iterations > 0
            act_next = within and left > 0 and not self.interrupted
            random = act_next and self.update_schedule.random(now + 1)
            self.collector.step(self._on_policy, act_next, random)
            self.position.iterations = now + 1

    def _begin_chunk(self) -> None:
        """Start to compute the first actions and to learn from the chunk before. (From a rollout
        the learner learns first.)"""
        if self._on_policy:
            self._learn_from_record()
        self._use_policy(self._newest_policy())
        self.collector.act(self.update_schedule.random(self.position.iterations))
        if not self._on_policy:
            self._learn_from_record()

    def _use_policy(self, policy: Tree) -> None:
        self._acting_policy = policy
        self.collector.use_policy(policy)

    def _newest_policy(self) -> Tree:
        """The policy for a whole chunk. Within a rollout the learner's arrays are not donated."""
        return self.transport.policy(self._lasting)

    def _learn_from_record(self) -> None:
        if self.collector.record:
            self.learn(self.collector.take_chunk())

    def learn(self, rows: np.ndarray) -> None:
        """Start to add the latest steps, rows [K, time, N], and to do the updates they owe."""
        count, stop = rows.shape[1], self.position.iterations
        owed = self.update_schedule.updates_between(stop - count, stop)
        names, values, steps = (), None, ()
        if self.hyper_schedules is not None:
            names, envs = self.hyper_schedules.names, self.setup.num_envs
            if self._on_policy or count == 1:
                values = self.hyper_schedules.at(self.steps)[:, None]
            else:  # each update has the values of the step that it follows
                ends = range(stop - count + 1, stop + 1)
                values = self.hyper_schedules.over(end * envs for end in ends)
                after = (self.update_schedule.updates_after(end - 1) for end in ends)
                steps = tuple(step for step, times in enumerate(after) for _ in range(times))
        self.transport.learn(rows, Call(owed, names, steps), values)
        self.position.updates += owed

    def restore(self, snapshot: Snapshot) -> None:
        self._acting_policy = None
        super().restore(snapshot)
        if self._acting_policy is None:  # the checkpoint holds the learner's policy only
            self._use_policy(self._newest_policy())
        self.transport.restart_counting(self.position.updates)
        self.collector.tally.iterations = self.position.iterations

    def _acting_state_dict(self) -> StateDict:
        """In mid-chunk also the acting policy: the learner's is a later one."""
        arrays = self.collector.state_dict()
        if self._on_policy or self.position.iterations % self.chunk_iterations == 0:
            return arrays
        return arrays | add_prefix("policy", state_dict(self._acting_policy))

    def _load_acting(self, acting: StateDict) -> None:
        self.collector.load_state_dict(acting)
        policy = select_prefix(acting, "policy")
        if policy:
            loaded = load_state_dict(self.transport.policy(), policy)
            self._use_policy(jax.device_put(loaded, self.transport.act_device))

    def episodes(self) -> list[EndedEpisode]:
        return self.collector.tally.take()

    def new_episodes(self) -> list[EndedEpisode]:
        return self.collector.tally.new()

    def faults(self) -> dict[str, int]:
        return self.collector.envs.faults

    def close(self) -> None:
        self.transport.close()
        self.collector.envs.close()
