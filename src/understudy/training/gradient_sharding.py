"""One update among several workers: what each one receives and answers, and what follows.

The learner samples the batch and applies the gradients. Workers only compute gradients, each of its
part of the rows. Arrays are sent as one vector per dtype, because flattening modules takes longer.

Where the workers store replay (`ReplaySharding`), each one samples from its own part instead.
"""

from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.algorithms.base import Aux
from understudy.algorithms.gradients import mean_of_shards
from understudy.algorithms.off_policy import ReplayNeeds
from understudy.buffers import Buffer, Priorities, sum_tree
from understudy.buffers.base import NOWHERE
from understudy.training.replay_placement import init_program
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.state_packing import Layout
from understudy.training.update import (
    LearnerState,
    UpdateInputs,
    apply_update,
    reset_networks,
    sample_inputs,
)
from understudy.types import ConfigError, Key, Tree


def check_shares(setup: TrainingSetup, workers: int) -> None:
    """Refuse batches that cannot be divided into equal parts, before anything starts."""
    needs = setup.algorithm.needs
    if isinstance(needs, ReplayNeeds):
        what, rows = f"batch_size {needs.batch_size}", needs.batch_size
    else:
        rows = needs.parts(setup.num_envs) // needs.minibatches
        what = f"a minibatch of {rows} {'environments' if needs.memory else 'steps'}"
    if rows % workers:
        raise ConfigError(
            f"{what} cannot be shared by {workers} gradient workers: it must be a multiple of "
            f"{workers}"
        )


def split_batch(batch: Any, count: int) -> list[Any]:
    """Split a prepared batch into `count` equal parts of consecutive rows: sequences stay whole."""

    def part(leaf: Array, place: int) -> Array:
        size, rest = divmod(len(leaf), count)
        assert not rest, f"{len(leaf)} rows are no {count} equal shares"
        return leaf[place * size : (place + 1) * size]

    return [jax.tree.map(partial(part, place=place), batch) for place in range(count)]


def join_answers(answers: list[tuple[Any, Aux]]) -> tuple[Any, Aux]:
    """The gradients and metrics of the whole batch. (A metric that is no mean over rows, such as
    A2C's explained variance, becomes the mean of the parts'.)"""
    gradients = mean_of_shards([gradients for gradients, _ in answers])
    metrics = jax.tree.map(lambda *x: sum(x) / len(x), *[aux.metrics for _, aux in answers])
    return gradients, Aux(metrics, jnp.concatenate([aux.priorities for _, aux in answers]))


def without_optimizer_state(state: Any) -> Any:
    """A state without that of the optimizers, half of its size, which only `apply` reads."""
    return state._replace(opt_state={})


def sent_shapes(setup: TrainingSetup) -> Any:
    """The shapes of the state that workers receive. No gradient is traced for them: an error in it
    belongs to the update that computes it."""
    keys = jax.ShapeDtypeStruct((setup.num_seeds, 2), jnp.uint32)
    initial = jax.vmap(partial(setup.algorithm.init, setup.spec))
    return without_optimizer_state(jax.eval_shape(initial, keys))


def weighted_mean(answers: list[tuple[Array, Any]]) -> Any:
    """The mean of answers, each weighted by its number of steps, as if all steps were in one place.
    An answer of no steps counts nothing; without any steps, the mean is not finite."""
    total = sum(steps for steps, _ in answers)

    def mean(*leaves: Array) -> Array:
        parts = zip(answers, leaves, strict=True)
        weighted = [jnp.where(steps > 0, steps * leaf, 0) for (steps, _), leaf in parts]
        return jnp.sum(jnp.stack(weighted), axis=0) / total

    return jax.tree.map(mean, *[answer for _, answer in answers])


def still_stored(priorities: Priorities | None, place: Array | None) -> Array | None:
    """The places without those that can no longer be sampled, such as the free slot of a lane: a
    late priority must not make them sampled again."""
    if priorities is None:
        return place
    assert place is not None
    return jnp.where(sum_tree.read(priorities.tree, place) > 0, place, NOWHERE)


@final
class BatchSharding:
    """The functions of an update whose batch is divided, lifted over K seeds. Learner and workers
    each build this from the same setup."""

    def __init__(self, setup: TrainingSetup):
        self.algorithm, self.num_seeds = setup.algorithm, setup.num_seeds
        self.buffer: Buffer = setup.buffer
        self._state = sent_shapes(setup)
        self._state_layout = Layout(self._state)

    def send(self, state: Any, batch: Any, count: int) -> tuple[dict[str, Array], list[Any]]:
        """What all workers receive of the state, and the part of the batch [K, ...] of each."""
        return self._state_layout.join(without_optimizer_state(state)), self._split(batch, count)

    def _split(self, batch: Any, count: int) -> list[Any]:
        return over_seeds(partial(split_batch, count=count), self.num_seeds)(batch)

    def answer(self, sent: dict[str, Array], batch: Any, key: Key, mask: Any) -> dict[str, Array]:
        """The gradients of a worker's part. `mask` is static."""
        answer = self._gradients(self._state_layout.split(sent), batch, key, mask)
        return Layout(answer).join(answer)

    def receive(
        self, answers: list[dict[str, Array]], learner: LearnerState, experience: Any,
        now: UpdateInputs, mask: Any, late: bool = False,
    ) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
        """Apply the update of these answers. If they are `late`, other updates may have been
        applied after its batch was sampled: the learner's key and the buffer have changed.
        `experience` is needed for its priorities only."""
        rows = jax.eval_shape(partial(self._split, count=len(answers)), now.batch)[0]
        shapes = jax.eval_shape(partial(self._gradients, mask=mask), self._state, rows, now.key)
        parts = [Layout(shapes).split(answer) for answer in answers]

        def one(learner: LearnerState, experience: Any, now: UpdateInputs, parts: Any) -> Tree:
            gradients, aux = join_answers(parts)
            place, next_key = now.place, now.next_key
            if late:
                place = still_stored(self.buffer.get_priorities(experience), place)
                next_key = learner.state.key
            gradients = gradients._replace(mask=mask)
            learner, good = apply_update(self.algorithm, learner, gradients, aux.metrics, next_key)
            learner = reset_networks(self.algorithm, self.buffer.spec, learner, mask.reset)
            errors, weight = aux.priorities, now.batch.weight
            return learner, self.buffer.update_priorities(experience, place, errors, weight, good)

        return over_seeds(one, self.num_seeds)(learner, experience, now, parts)

    def _gradients(self, state: Any, batch: Any, key: Key, mask: Any) -> tuple[Any, Aux]:
        def one(state: Any, batch: Any, key: Key) -> tuple[Any, Aux]:
            gradients, aux = self.algorithm.gradients(state, batch, key, mask)
            return gradients._replace(mask=None), aux

        return over_seeds(one, self.num_seeds)(state, batch, key)


@final
class ReplaySharding:
    """The functions of an update whose rows the workers sample, each from a `buffer` of its own,
    lifted over K seeds. Not for priorities, whose weights depend on all rows."""

    def __init__(self, setup: TrainingSetup, buffer: Buffer):
        self.num_seeds, self._algorithm = setup.num_seeds, setup.algorithm
        self._buffer = buffer
        self._state = sent_shapes(setup)
        self._layout = Layout(self._state)
        self._experience = jax.eval_shape(init_program(buffer, self.num_seeds, None))

    def send(self, learner: LearnerState) -> tuple[dict[str, Array], LearnerState]:
        """What all workers receive, and the learner with its next key."""
        state = learner.state
        next_key = jax.vmap(lambda key: jax.random.split(key, 3)[0])(state.key)
        moved_on = learner._replace(state=state._replace(key=next_key))
        return self._layout.join(without_optimizer_state(state)), moved_on

    def answer(
        self, sent: dict[str, Array], experience: Any, place: Array, mask: Any
    ) -> tuple[Array, dict[str, Array]]:
        """How many steps [K] the worker at that place stores, and its gradients and metrics."""
        steps, answer = self._gradients(self._layout.split(sent), experience, place, mask)
        return steps, Layout(answer).join(answer)

    def receive(
        self, answers: list[tuple[Array, dict[str, Array]]], learner: LearnerState, mask: Any
    ) -> LearnerState:
        """Apply the update of these answers."""
        gradients = partial(self._gradients, mask=mask)
        _, shapes = jax.eval_shape(gradients, self._state, self._experience, jnp.int32(0))
        parts = [(steps, Layout(shapes).split(answer)) for steps, answer in answers]

        def one(learner: LearnerState, parts: list[Any]) -> LearnerState:
            gradients, metrics = weighted_mean(parts)
            gradients, key = gradients._replace(mask=mask), learner.state.key
            learner = apply_update(self._algorithm, learner, gradients, metrics, key)[0]
            return reset_networks(self._algorithm, self._buffer.spec, learner, mask.reset)

        return over_seeds(one, self.num_seeds)(learner, parts)

    def _gradients(self, state: Any, experience: Any, place: Array, mask: Any) -> Any:
        def one(state: Any, experience: Any, place: Array) -> Any:
            state = state._replace(key=jax.random.fold_in(state.key, place))
            now = sample_inputs(self._algorithm, self._buffer, state, experience)
            gradients, aux = self._algorithm.gradients(state, now.batch, now.key, mask)
            # Before the first whole sequence there are steps, but none to sample.
            steps = jnp.where(jnp.any(now.batch.weight > 0), jnp.sum(experience.stored), 0)
            return steps, (gradients._replace(mask=None), aux.metrics)

        return over_seeds(one, self.num_seeds, shared=(2,))(state, experience, place)
