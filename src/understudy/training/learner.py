"""The learning half of the host loop: steps go in, updates happen beside the environments' step.

On the CPU a program runs asynchronously by itself, and acting reads the learner's own arrays. On
an accelerator it is the border that takes time (on an H200: about 4 µs for each buffer of a call,
of which SAC has 59, and 150 µs for a small transfer; the update itself takes 120). So there

- the learner crosses packed into one vector per dtype,
- the program leaves the new policy in the host's own (pinned) memory,
- a thread makes the call while the environments step, and acting happens on the host.

Where the host keeps replay, steps are added and batches drawn by whoever makes the call.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.buffers.frame_batch import Drawn
from understudy.training import fragments
from understudy.training.device_sharding import divides_rows, shared_by_all
from understudy.training.feeding import Experience, add, fill, with_priorities
from understudy.training.fragments import Fragment, widen_on_host
from understudy.training.program_cache import shared
from understudy.training.replay_placement import HostReplay
from understudy.training.seed_axis import over_members
from understudy.training.step_packing import Parcel
from understudy.training.transport import Form, form_of, form_programs
from understudy.training.updates import Learner, move, observe, observe_all, updates
from understudy.types import Transition, Tree

MOST_PHASES = 4  # of delayed updates, that are worth a program each
Block = np.ndarray | Fragment


class Call(NamedTuple):
    """What one call of the learn program is compiled for."""

    count: int  # updates
    phase: int | None  # a single update's place in the pattern of delayed parts, if worth it
    moving: tuple[str, ...]  # the hyper-parameters that follow a schedule


@final
class Learning:
    """Holds learner and experience; adds steps and updates, one call ahead of the environments."""

    def __init__(
        self,
        algorithm: Algorithm,
        parcel: Parcel,
        learner: Learner,
        experience: Experience | HostReplay,
        accelerated: bool | None = None,
    ):
        """`accelerated` is found out from where the learner is, unless given."""
        self._sharding = learner.state.key.sharding
        first, *others = self._sharding.device_set
        if accelerated is None:  # or spread: acting is not, and cannot read a part of the learner
            accelerated = bool(others) or first.platform != "cpu"
        self.act_device = jax.local_devices(backend="cpu")[0] if accelerated else first
        self.form = form_of(algorithm, learner, bool(accelerated))
        self._thread = ThreadPoolExecutor(1, "understudy-learner") if accelerated else None
        self._pending: Future[None] | None = None
        self._pack, self._unpack, self._send = form_programs(self.form)
        self.learner, self.experience = learner, experience
        self._period = algorithm.due_period
        self.restart_counting(0)
        self._parcel, members = parcel, len(learner.state.key)
        self._observes = any(part is not None for part in learner.state.running)
        told = (self.form, algorithm, parcel, members, self._sharding)
        self.program = _learn_program(_add_and_learn, (0, 1, 3), *told)
        self.program_of_drawn = _learn_program(_learn_drawn, (0, 3), *told)

    def learn(
        self, block: Block, count: int, moving: tuple[str, ...], moved: np.ndarray | None
    ) -> None:
        """Add a packed step [K, N, bytes] (or a whole rollout, [K, time, N, bytes], or a fragment
        from afar), move the hyper-parameters named to the values [K, names], and do `count`
        updates; returns at once, or, where replay is on the host and there is no other thread,
        when it has drawn."""
        self._settle()
        on_host = isinstance(self._experience, HostReplay)
        call = self._learn_from_host if on_host else self._learn_on_device
        if self._thread is None:
            call(block, count, moving, moved)
        else:
            self._pending = self._thread.submit(call, block, count, moving, moved)

    def _learn_on_device(
        self, block: Block, count: int, moving: tuple[str, ...], moved: np.ndarray | None
    ) -> None:
        self._experience, sent = self._run(
            self.program, self._experience, block, count, moving, moved
        )
        self._policy = self.form.receive_policy(sent, self._packed)

    def _learn_from_host(
        self, block: Block, count: int, moving: tuple[str, ...], moved: np.ndarray | None
    ) -> None:
        """The same, of replay that is on the host. The device is given the step only where it keeps
        statistics of what was seen, and is left alone where there is nothing for it to do."""
        replay: Any = self._experience
        if isinstance(block, Fragment):
            for report in widen_on_host(self._parcel.read(block.blocks), replay.lanes, block):
                replay.add(report)
        else:
            replay.add(self._parcel.read(block))
        seen = block if self._observes else None
        while count or seen is not None or moving:
            drawn, now = replay.draw(self._done, count) if count else (None, 0)
            # Drawing goes on beside the program before this one, but not further ahead of it.
            jax.block_until_ready(self._index)
            _, sent = self._run(self.program_of_drawn, drawn, seen, now, moving, moved)
            count, seen, moving, moved = count - now, None, (), None
            if not count:
                self._policy = self.form.receive_policy(sent, self._packed)

    def _run(
        self, program: Any, given: Tree, block: Block | None, count: int,
        moving: tuple[str, ...], moved: np.ndarray | None,
    ) -> tuple[Any, Tree]:  # fmt: skip
        single = count == 1 and self._period <= MOST_PHASES
        call = Call(count, self._done % self._period if single else None, moving)
        self._packed, left, self._index, sent = program(
            self._packed, given, block, self._index, moved, call
        )
        self._done += count
        return left, sent

    def policy(self) -> Tree:
        """What the act program takes: the policy after every update asked for so far."""
        self._settle()
        return self._policy

    def _settle(self) -> None:
        """Until the thread is done: only then may its arrays be touched."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    @property
    def learner(self) -> Learner:
        self._settle()
        return self._unpack(self._packed)

    @learner.setter
    def learner(self, learner: Learner) -> None:
        self._settle()
        # Committed to its devices: the thread does not see the caller's default one.
        self._packed = self._pack(jax.device_put(learner, self._sharding))
        self._policy = self.form.receive_policy(self._send(self._packed), self._packed)

    @property
    def experience(self) -> Experience | HostReplay:
        self._settle()
        return self._experience

    @experience.setter
    def experience(self, experience: Experience | HostReplay) -> None:
        self._settle()
        on_host = isinstance(experience, HostReplay)
        self._experience = experience if on_host else jax.device_put(experience, self._sharding)

    def restart_counting(self, updates_done: int) -> None:
        """Set the index of the next update."""
        self._settle()
        # Twice: on the host to choose a program, on the device because a transfer is dear.
        self._done = updates_done
        self._index = jax.device_put(np.int32(updates_done), shared_by_all(self._sharding))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def _add_and_learn(
    algorithm: Algorithm, parcel: Parcel, call: Call, learner: Learner, experience: Experience,
    block: Array | Fragment, index: Array, moved: Tree,
) -> tuple[Learner, Experience]:  # fmt: skip
    """One member's share of a call."""
    learner = move(learner, {name: moved[place] for place, name in enumerate(call.moving)})
    if isinstance(block, Fragment):
        step, valid, memory = _reported(parcel, block.blocks)
        experience = fragments.add_all(experience, step, valid, memory, block.lane)
    else:
        step, valid, memory = _reported(parcel, block)
        put = add if block.ndim == 2 else fill  # of [envs, bytes], or of [time, envs, bytes]
        experience = put(experience, step, valid, memory)
    learner = _observe(algorithm, learner, step, valid, block)
    if call.count:
        first = index if call.phase is None else call.phase
        learner, priorities = updates(algorithm, learner, experience, first, call.count)
        experience = with_priorities(experience, priorities)
    return learner, experience


def _learn_drawn(
    algorithm: Algorithm, parcel: Parcel, call: Call, learner: Learner, drawn: Drawn | None,
    block: Array | Fragment | None, index: Array, moved: Tree,
) -> tuple[Learner, None]:  # fmt: skip
    """One member's share of a call, of what the host has added and drawn."""
    learner = move(learner, {name: moved[place] for place, name in enumerate(call.moving)})
    if block is not None:
        packed = block.blocks if isinstance(block, Fragment) else block
        step, valid, _ = _reported(parcel, packed)
        learner = _observe(algorithm, learner, step, valid, block)
    if drawn is not None:
        first = index if call.phase is None else call.phase
        learner, _ = updates(algorithm, learner, drawn, first, call.count)
    return learner, None


def _observe(
    algorithm: Algorithm, learner: Learner, step: Transition, valid: Array, block: Array | Fragment
) -> Learner:
    if isinstance(block, Fragment):
        return fragments.observe_all(algorithm, learner, step, valid, block.lane)
    return (observe if valid.ndim == 1 else observe_all)(algorithm, learner, step, valid)


def _reported(parcel: Parcel, block: Array) -> tuple[Transition, Array, Array | None]:
    report = parcel.unpack(block)
    step = Transition(**{name: report[name] for name in Transition._fields})
    return step, report["valid"], report.get("memory")


@shared
def _learn_program(
    one: Callable[..., Any], donated: tuple[int, ...], form: Form, algorithm: Algorithm,
    parcel: Parcel, members: int, sharding: Sharding,
) -> Any:  # fmt: skip
    """One call of learning: `one` member's share of it, lifted over all of them."""

    def learn(packed: Tree, given: Tree, block: Tree, index: Array, moved: Tree, call: Call):
        lifted = over_members(partial(one, algorithm, parcel, call), members, shared=(3,))
        learner, left = lifted(form.unpack(packed), given, block, index, moved)
        packed = form.pack(learner)
        return packed, left, index + call.count, form.send_policy(packed)

    all_alike = shared_by_all(sharding)
    return jax.jit(
        divides_rows(learn, sharding),
        donate_argnums=donated,
        static_argnums=5,
        out_shardings=(sharding, sharding, all_alike, None),
    )
