"""The learner: adds chunks of steps to the buffer and updates, beside the environments' steps.

`learn_from_chunk` is what happens in one call, of one seed. Everything else here compiles it, calls
it and holds what it returns.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from understudy.algorithms.base import Algorithm
from understudy.buffers import Buffer
from understudy.training.device_sharding import divides_rows, shared_by_all
from understudy.training.program_cache import shared
from understudy.training.running_statistics import observe
from understudy.training.seed_axis import over_members
from understudy.training.step_packing import RowType, as_bytes, extras_of, to_chunk
from understudy.training.transport import Form, Transport
from understudy.training.updates import LearnerState, move, updates
from understudy.types import Tree

MOST_PHASES = 4  # of delayed updates, that are worth a program each


class Call(NamedTuple):
    """What one call of the learner's program is compiled for."""

    count: int  # updates
    phase: int | None  # a single update's place in the pattern of delayed parts, if worth it
    moving: tuple[str, ...]  # the hyper-parameters that follow a schedule
    steps: tuple[int, ...] = ()  # of a chunk of several steps: the one that each update follows


class Rows(NamedTuple):
    """A chunk as it travels: rows of bytes [K, time, lanes, bytes]."""

    data: Any
    first_lane: Any = None  # [K]: see `Chunk`


def learn_from_chunk(
    algorithm: Algorithm, buffer: Buffer, rows: RowType, call: Call, learner: LearnerState,
    data: Any, given: Rows | None, index: Array, values: Array,
) -> tuple[LearnerState, Any]:  # fmt: skip
    """Add a chunk of one seed to the buffer, take it into the statistics, then update.

    `data` is the buffer's state or, of a buffer that is fed, what the host has drawn. `values`
    [time, names] are those of scheduled hyper-parameters at each step of the chunk.

    Where the extras of acting are learned from, the statistics stay as they were while acting until
    the updates are done: only then is the first importance ratio 1."""
    frozen, chunk = bool(extras_of(algorithm)), None
    moved = {name: values[:, place] for place, name in enumerate(call.moving)}
    learner = move(learner, {name: value[0] for name, value in moved.items()})
    if given is not None:
        fields = rows.unpack(given.data)
        chunk = to_chunk(fields, rows.fields, given.first_lane)
        if not buffer.fed:
            data = buffer.add(data, chunk)
        if not frozen:
            learner = observe(algorithm, learner, chunk)
    if call.count:
        first = index if call.phase is None else call.phase
        steps = np.array(call.steps, int)
        each = {name: value[steps] for name, value in moved.items()} if call.steps else None
        learner, priorities = updates(algorithm, buffer, learner, data, first, call.count, each)
        data = buffer.with_priorities(data, priorities)
    if frozen and chunk is not None:
        learner = observe(algorithm, learner, chunk)
    return learner, None if buffer.fed else data


@final
class Learner:
    """Holds the learner's state and the buffer's."""

    def __init__(
        self,
        algorithm: Algorithm,
        buffer: Buffer,
        rows: RowType,
        learner: LearnerState,
        experience: Any,
        accelerated: bool | None = None,
    ):
        self.transport = Transport(algorithm, learner, accelerated)
        self._algorithm, self._rows, self._members = algorithm, rows, len(learner.state.key)
        self._observes = any(part is not None for part in learner.state.normalizer)
        self.learner = learner
        self.use_buffer(buffer, experience)
        self.restart_counting(0)

    def use_buffer(self, buffer: Buffer, experience: Any) -> None:
        """Go on with this buffer, which is in the state given."""
        self.buffer, self.experience = buffer, experience
        form, sharding = self.transport.form, self.transport.sharding
        self.program = _learn_program(
            self._algorithm, buffer, self._rows, form, self._members, sharding
        )

    def learn(
        self, rows: np.ndarray, count: int, moving: tuple[str, ...] = (), values: Any = None,
        steps: tuple[int, ...] = (), first_lane: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Add rows [K, time, lanes], move the hyper-parameters named to the values [K, time,
        names], and do `count` updates, of which each follows the step of the chunk that `steps`
        says. Returns at once, or, where the host samples and there is no other thread, when it has
        sampled."""
        call = self._learn_from_host if self.buffer.fed else self._learn_on_device
        self.transport.submit(call, Rows(as_bytes(rows), first_lane), count, moving, values, steps)

    def _learn_on_device(self, given: Rows, *what: Any) -> None:
        self._experience, sent = self._run(self._experience, given, *what)
        self.transport.receive(sent)

    def _learn_from_host(
        self, given: Rows, count: int, moving: tuple[str, ...], values: Any, steps: tuple[int, ...]
    ) -> None:
        """The same where the host keeps replay. The device is given the chunk only where it keeps
        statistics of it, and is not called where there is nothing for it to do."""
        buffer: Any = self.buffer
        read = np.ascontiguousarray(given.data).view(self._rows.dtype)[..., 0]
        chunk = to_chunk(read, self._rows.fields, given.first_lane)
        self._experience = buffer.add(self._experience, chunk)
        seen = given if self._observes else None
        while count or seen is not None or moving:
            drawn, now = buffer.draw(self._experience, self._done, count) if count else (None, 0)
            # Sampling goes on beside the program before this one, but not further ahead of it.
            jax.block_until_ready(self._index)
            _, sent = self._run(drawn, seen, now, moving, values, steps[:now])
            count, seen, steps = count - now, None, steps[now:]
            moving = moving if steps else ()
            if not count:
                self.transport.receive(sent)

    def _run(
        self, data: Any, given: Rows | None, count: int, moving: tuple[str, ...], values: Any,
        steps: tuple[int, ...],
    ) -> tuple[Any, Tree]:  # fmt: skip
        period = self._algorithm.delays.period
        phase = self._done % period if count == 1 and period <= MOST_PHASES else None
        call = Call(count, phase, moving, steps if moving else ())
        self.transport.packed, left, self._index, sent = self.program(
            self.transport.packed, data, given, self._index, values, call
        )
        self._done += count
        return left, sent

    def policy(self, lasting: bool = False) -> Tree:
        """What the act program takes; see `Transport.policy`."""
        return self.transport.policy(lasting)

    @property
    def learner(self) -> LearnerState:
        return self.transport.learner

    @learner.setter
    def learner(self, learner: LearnerState) -> None:
        self.transport.learner = learner

    @property
    def experience(self) -> Any:
        """The buffer's state."""
        self.transport.wait()
        return self._experience

    @experience.setter
    def experience(self, experience: Any) -> None:
        self.transport.wait()
        fed = self.buffer.fed
        self._experience = (
            experience if fed else jax.device_put(experience, self.transport.sharding)
        )

    def restart_counting(self, updates_done: int) -> None:
        """Set the index of the next update."""
        self.transport.wait()
        # Twice: on the host to choose a program, on the device because a transfer is slow.
        self._done = updates_done
        self._index = jax.device_put(np.int32(updates_done), shared_by_all(self.transport.sharding))

    def close(self) -> None:
        self.transport.close()


@shared
def _learn_program(
    algorithm: Algorithm, buffer: Buffer, rows: RowType, form: Form, members: int,
    sharding: Sharding,
) -> Callable[..., Any]:  # fmt: skip
    """`learn_from_chunk`, lifted over all seeds and compiled."""

    def learn(packed: Tree, data: Any, given: Any, index: Array, values: Any, call: Call):
        one = partial(learn_from_chunk, algorithm, buffer, rows, call)
        lifted = over_members(one, members, shared=(3,))
        learner, left = lifted(form.unpack(packed), data, given, index, values)
        packed = form.pack(learner)
        return packed, left, index + call.count, form.send_policy(packed)

    return jax.jit(
        divides_rows(learn, sharding),
        donate_argnums=(0, 3) if buffer.fed else (0, 1, 3),
        static_argnums=5,
        out_shardings=(sharding, sharding, shared_by_all(sharding), None),
    )
