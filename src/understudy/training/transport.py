"""The transport between the host and the learner's device: how chunks reach the device, how the
learner's state is stored between programs, and how a policy reaches the host, where it acts.

A first-time reader can skip this file. On the CPU a program runs asynchronously by itself, and
acting reads the learner's own arrays. On an accelerator the transfers take the time (on an H200:
about 4 µs for each buffer of a call, of which SAC has 59, and 150 µs for a small transfer; the
update itself takes 120). So there

- the state is packed into one vector per dtype,
- the program leaves the new policy in the host's own (pinned) memory,
- a thread makes the call while the environments step, and acting happens on the host.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from understudy.algorithms.optim import Delays
from understudy.buffers import Buffer
from understudy.training.compilation import compiler_options
from understudy.training.devices import divides_rows, shared_by_all
from understudy.training.learner import Call, learn_from_chunk
from understudy.training.program_cache import shared
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.state_packing import Form, can_pin, form_programs, make_form
from understudy.training.step_packing import as_bytes, step_dtype, to_chunk, unpack_rows
from understudy.training.update import LearnerState
from understudy.training.update_schedule import UpdateSchedule
from understudy.types import Tree

ACCELERATOR_CHUNK = 16  # steps at most; see docs/design.md for what they cost and save
MOST_RUNS, LONGEST_PERIOD = 4, 64  # of delays whose programs hold no conditionals


def places(delays: Delays) -> tuple[int, ...]:
    """Return, for each update of a period, the first one of its run: updates of a run share a
    program. Return nothing if the runs are too many for programs of their own."""
    runs = delays.runs(0, delays.period) if delays.period <= LONGEST_PERIOD else []
    return tuple(first for first, size in runs for _ in range(size) if len(runs) <= MOST_RUNS)


class Rows(NamedTuple):
    """A chunk as it is transferred: rows of bytes [K, time, lanes, bytes]."""

    data: Any
    first_lane: Any = None  # [K]: see `Chunk`


@final
class Transport:
    """Stores the states of the learner and of the buffer in the form that suits their device, and
    calls the learner's program while the environments step."""

    def __init__(
        self, setup: TrainingSetup, buffer: Buffer, learner: LearnerState, experience: Any,
        accelerated: bool | None = None,
    ):  # fmt: skip
        """`accelerated` follows from where the learner is, unless given."""
        self.sharding = learner.state.key.sharding
        first, *others = self.sharding.device_set
        if accelerated is None:  # or divided: acting is not, and cannot read a part of the learner
            accelerated = bool(others) or first.platform != "cpu"
        self.act_device = jax.local_devices(backend="cpu")[0] if accelerated else first
        self.form = make_form(setup.unseeded, bool(accelerated), can_pin(self.sharding))
        self._pack, self._unpack, self._send = form_programs(self.form)
        self._thread = ThreadPoolExecutor(1, "understudy-learner") if accelerated else None
        self._pending: Future[None] | None = None
        self._setup, self._rows = setup, step_dtype(setup.algorithm, setup.spec)
        self._places = places(setup.algorithm.delays)
        self._observes = any(part is not None for part in learner.state.normalizer)
        self.packed: Tree = None  # the learner's state, in that form
        self.learner = learner
        self.use_buffer(buffer, experience)
        self.restart_counting(0)

    @property
    def usual_chunk_steps(self) -> int:
        """The steps of a chunk that suit the device: of accelerators, those that owe whole periods
        of the delays."""
        device, *others = self.sharding.device_set
        if device.platform == "cpu" and not others:
            return 1
        algorithm = self._setup.algorithm
        schedule = UpdateSchedule.of(algorithm.needs, self._setup.num_envs)
        return schedule.iterations_of_whole_periods(algorithm.delays.period, ACCELERATOR_CHUNK)

    def use_buffer(self, buffer: Buffer, experience: Any) -> None:
        """Continue with this buffer and its state."""
        self.buffer, self.experience = buffer, experience
        self.program = _learn_program(self._setup.unseeded, buffer, self.form, self.sharding)

    def learn(
        self, rows: np.ndarray, call: Call, values: Any = None, first_lane: Any = None
    ) -> None:
        """Add rows [K, time, lanes], set the moving hyper-parameters of the `call` to the values
        [K, time, names], and do its updates.

        Returns at once. Where the host samples and there is no thread, it samples first."""
        learn = self._learn_from_host if self.buffer.external else self._learn_on_device
        given = Rows(as_bytes(rows), first_lane)
        self.wait()
        if self._thread is None:
            learn(given, call, values)
        else:
            self._pending = self._thread.submit(learn, given, call, values)

    def policy(self, lasting: bool = False) -> Tree:
        """The policy after every update asked for so far, as the act program takes it. The next
        call of the learner may donate its arrays, except those of a `lasting` one."""
        self.wait()
        return self.form.lasting_policy(self._policy, self.act_device) if lasting else self._policy

    def wait(self) -> None:
        """Wait until the thread has ended its call: only then may its arrays be read."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _learn_on_device(self, given: Rows, call: Call, values: Any) -> None:
        self._experience, sent = self._run(self._experience, given, call, values)
        self._receive(sent)

    def _learn_from_host(self, given: Rows, call: Call, values: Any) -> None:
        """The same where the host stores replay. The device receives the chunk only for statistics
        of it, and is not called where it has nothing to do."""
        buffer: Any = self.buffer
        read = np.ascontiguousarray(given.data).view(self._rows)[..., 0]
        chunk = to_chunk(read, self._rows, given.first_lane)
        self._experience = buffer.add(self._experience, chunk)
        seen = given if self._observes else None
        while call.count or seen is not None or call.moving:
            sampled, now = None, 0
            if call.count:
                sampled, now = buffer.sample_updates(self._experience, self._done, call.count)
            # Sampling runs while the program before this one does, but not further ahead of it.
            jax.block_until_ready(self.next_index)
            part = call._replace(count=now, steps=call.steps[:now])
            _, sent = self._run(sampled, seen, part, values)
            seen, steps = None, call.steps[now:]
            call = Call(call.count - now, call.moving if steps else (), steps)
            if not call.count:
                self._receive(sent)

    def _run(self, data: Any, given: Rows | None, call: Call, values: Any) -> tuple[Any, Tree]:
        call = call._replace(phase=self._phase(call.count))
        self.packed, left, self.next_index, sent = self.program(
            self.packed, data, given, self.next_index, values, call
        )
        self._done += call.count
        return left, sent

    def _phase(self, count: int) -> int | None:
        """Return the place of the next update in the pattern of delays, where a program is compiled
        for it: for single updates, and for whole periods on accelerators, where each conditional
        waits for the host."""
        period = len(self._places)
        if not count or not period:
            return None
        place = self._done % period
        if count == 1:
            return self._places[place]
        return place if self._thread is not None and count % period == 0 else None

    def _receive(self, sent: Tree) -> None:
        """Use the policy that a program has sent from now on."""
        self._policy: Tree = self.form.receive_policy(sent, self.packed)

    @property
    def learner(self) -> LearnerState:
        self.wait()
        return self._unpack(self.packed)

    @learner.setter
    def learner(self, learner: LearnerState) -> None:
        self.wait()
        # Committed to its devices: the thread does not see the caller's default one.
        self.packed = self._pack(jax.device_put(learner, self.sharding))
        self._receive(self._send(self.packed))

    @property
    def version(self) -> Any:
        """See `Trainer.version`."""
        self.wait()
        return self.packed

    @property
    def experience(self) -> Any:
        """The buffer's state."""
        self.wait()
        return self._experience

    @experience.setter
    def experience(self, experience: Any) -> None:
        self.wait()
        external = self.buffer.external
        self._experience = experience if external else jax.device_put(experience, self.sharding)

    def restart_counting(self, updates_done: int) -> None:
        """Set the index of the next update."""
        self.wait()
        # Twice: on the host to choose a program, on the device because a transfer is slow.
        self._done = updates_done
        self.next_index = jax.device_put(np.int32(updates_done), shared_by_all(self.sharding))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


@shared
def _learn_program(
    setup: TrainingSetup, buffer: Buffer, form: Form, sharding: Sharding
) -> Callable[..., Any]:
    """`learn_from_chunk`, lifted over all seeds and compiled."""
    algorithm, rows = setup.algorithm, step_dtype(setup.algorithm, setup.spec)

    def of_one_seed(
        call: Call, learner: LearnerState, data: Any, given: Rows | None, index: Array, values: Any
    ) -> tuple[LearnerState, Any]:
        chunk = None
        if given is not None:
            chunk = to_chunk(unpack_rows(rows, given.data), rows, given.first_lane)
        return learn_from_chunk(algorithm, buffer, call, learner, data, chunk, index, values)

    def learn(packed: Tree, data: Any, given: Any, index: Array, values: Any, call: Call):
        lifted = over_seeds(partial(of_one_seed, call), setup.num_seeds, shared=(3,))
        learner, left = lifted(form.unpack(packed), data, given, index, values)
        packed = form.pack(learner)
        return packed, left, index + call.count, form.send_policy(packed)

    return jax.jit(
        divides_rows(learn, sharding),
        donate_argnums=(0, 3) if buffer.external else (0, 1, 3),
        static_argnums=5,
        out_shardings=(sharding, sharding, shared_by_all(sharding), None),
        compiler_options=compiler_options(sharding.device_set),
    )
