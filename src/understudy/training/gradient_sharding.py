"""One update among several workers: what each is given, what it answers, and the whole again.

The learner draws and finishes; workers only compute gradients, each of its share of the rows. What
crosses is one array per dtype, because taking modules apart costs more than sending them.

Where experience lies with the workers (`Draws`), each draws from its own part of it instead.
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
from understudy.training.seed_axis import over_seeds
from understudy.training.setup import TrainingSetup
from understudy.training.state_packing import Layout
from understudy.training.update import LearnerState, Ready, finish, ready
from understudy.types import ConfigError, Key, Tree

NOWHERE = jnp.iinfo(jnp.int32).max


def check_shares(setup: TrainingSetup, workers: int) -> None:
    """Refuse, before anything starts, batches that cannot be divided into equal shares."""
    needs = setup.algorithm.needs
    if isinstance(needs, ReplayNeeds):
        what, rows = f"batch_size {needs.batch_size}", needs.batch_size
    elif needs.memory:  # whole environments: memory runs through time
        what, rows = f"a rollout of {setup.num_envs} environments", setup.num_envs
    else:
        rows = needs.horizon * setup.num_envs // needs.minibatches
        what = f"a minibatch of {rows} steps"
    if rows % workers:
        raise ConfigError(
            f"{what} cannot be shared by {workers} gradient workers: it must be a multiple of "
            f"{workers}"
        )


def share(batch: Any, count: int) -> list[Any]:
    """A prepared batch in `count` equal parts: rows that follow one another, and so whole
    sequences, whose rows do."""

    def part(leaf: Array, place: int) -> Array:
        size, rest = divmod(len(leaf), count)
        assert not rest, f"{len(leaf)} rows are no {count} equal shares"
        return leaf[place * size : (place + 1) * size]

    return [jax.tree.map(partial(part, place=place), batch) for place in range(count)]


def join(answers: list[tuple[Any, Aux]]) -> tuple[Any, Aux]:
    """What the whole batch would have answered. (A metric that is no mean over rows, such as
    A2C's explained variance, becomes the mean of the shares' own.)"""
    gradients = mean_of_shards([gradients for gradients, _ in answers])
    metrics = jax.tree.map(lambda *x: sum(x) / len(x), *[aux.metrics for _, aux in answers])
    return gradients, Aux(metrics, jnp.concatenate([aux.priorities for _, aux in answers]))


def without_optimizer_state(state: Any) -> Any:
    """All of a state but the optimizers', which only `apply` reads: half of its size."""
    return state._replace(opt_state={})


def weighed(answers: list[tuple[Array, Any]]) -> Any:
    """The mean of what each tells, by how much it holds: as if all of it lay in one place. Who
    holds nothing has no say; if nobody holds anything, it is not finite."""
    total = sum(held for held, _ in answers)

    def mean(*leaves: Array) -> Array:
        parts = zip(answers, leaves, strict=True)
        weighty = [jnp.where(held > 0, held * leaf, 0) for (held, _), leaf in parts]
        return jnp.sum(jnp.stack(weighty), axis=0) / total

    return jax.tree.map(mean, *[told for _, told in answers])


def told_of(setup: TrainingSetup) -> Any:
    """The shapes of what workers are told of the State."""
    keys = jax.ShapeDtypeStruct((setup.num_seeds, 2), jnp.uint32)
    initial = jax.vmap(partial(setup.algorithm.init, setup.spec))
    return without_optimizer_state(jax.eval_shape(initial, keys))


def still_drawable(priorities: Priorities | None, place: Array | None) -> Array | None:
    """Places that have since been given up (as the one free slot of a lane was) lead nowhere: a
    late priority must not make them drawable again."""
    if priorities is None:
        return place
    assert place is not None
    return jnp.where(sum_tree.read(priorities.tree, place) > 0, place, NOWHERE)


@final
class Shares:
    """The functions of a shared update, lifted over K seeds. Learner and workers each build
    this from the same setup."""

    def __init__(self, setup: TrainingSetup):
        self.algorithm, self.num_seeds = setup.algorithm, setup.num_seeds
        self.buffer: Buffer = setup.buffer
        self._state = told_of(setup)
        self._state_layout = Layout(self._state)

    def send(self, state: Any, batch: Any, count: int) -> tuple[dict[str, Array], list[Any]]:
        """What all workers are told of the State, and each one's share of the batch [K, ...]."""
        parts = over_seeds(partial(share, count=count), self.num_seeds)(batch)
        return self._state_layout.join(without_optimizer_state(state)), parts

    def answer(self, sent: dict[str, Array], batch: Any, key: Key, mask: Any) -> dict[str, Array]:
        """A worker's part. `mask` is plain, and the program is compiled for it."""
        answer = self._gradients(self._state_layout.split(sent), batch, key, mask)
        return Layout(answer).join(answer)

    def receive(
        self, answers: list[dict[str, Array]], learner: LearnerState, experience: Any,
        now: Ready, mask: Any, late: bool = False,
    ) -> tuple[LearnerState, Priorities | None]:  # fmt: skip
        """Finish the update that these answer. If they come `late`, others may have been finished
        since it was made `ready`: the learner's key has moved on by itself, and so has the
        ring. Experience is needed for its priorities only."""
        rows = jax.tree.map(lambda x: _first_of(x, len(answers)), now.batch)
        shapes = jax.eval_shape(partial(self._gradients, mask=mask), self._state, rows, now.key)
        parts = [Layout(shapes).split(answer) for answer in answers]

        def one(learner: LearnerState, experience: Any, now: Ready, parts: list[Any]) -> Tree:
            gradients, aux = join(parts)
            priorities = None
            if experience is not None:
                priorities = self.buffer.get_priorities(experience)
            if late:
                place = still_drawable(priorities, now.place)
                now = now._replace(next_key=learner.state.key, place=place)
            gradients = gradients._replace(mask=mask)
            learner, good = finish(self.algorithm, learner, now, gradients, aux)
            if priorities is None:
                return learner, None
            told = (now.place, aux.priorities, now.batch.weight, good)
            return learner, self.buffer.update_priorities(experience, *told)

        return over_seeds(one, self.num_seeds)(learner, experience, now, parts)

    def _gradients(self, state: Any, batch: Any, key: Key, mask: Any) -> tuple[Any, Aux]:
        def one(state: Any, batch: Any, key: Key) -> tuple[Any, Aux]:
            gradients, aux = self.algorithm.gradients(state, batch, key, mask)
            return gradients._replace(mask=None), aux

        return over_seeds(one, self.num_seeds)(state, batch, key)


@final
class Draws:
    """The functions of an update whose rows the workers sample, each from a `buffer` of its own,
    lifted over K seeds. Only for replay without priorities, whose weights are relative to the
    whole."""

    def __init__(self, setup: TrainingSetup, buffer: Buffer):
        self.num_seeds, self._algorithm = setup.num_seeds, setup.algorithm
        self._buffer = buffer
        self._state = told_of(setup)
        self._layout = Layout(self._state)
        each = jax.vmap(lambda _: buffer.init())
        self._experience = jax.eval_shape(each, jnp.arange(self.num_seeds))

    def send(self, learner: LearnerState) -> tuple[dict[str, Array], LearnerState]:
        """What all workers are told, and the learner whose key has moved on since."""
        state = learner.state
        next_key = jax.vmap(lambda key: jax.random.split(key, 3)[0])(state.key)
        moved_on = learner._replace(state=state._replace(key=next_key))
        return self._layout.join(without_optimizer_state(state)), moved_on

    def answer(
        self, sent: dict[str, Array], experience: Any, place: Array, mask: Any
    ) -> tuple[Array, dict[str, Array]]:
        """The part of the worker at that place: how much it holds [K], and what it tells."""
        held, told = self._tell(self._layout.split(sent), experience, place, mask)
        return held, Layout(told).join(told)

    def receive(
        self, answers: list[tuple[Array, dict[str, Array]]], learner: LearnerState, mask: Any
    ) -> LearnerState:
        """Finish the update that these answer."""
        tell = partial(self._tell, mask=mask)
        _, shapes = jax.eval_shape(tell, self._state, self._experience, jnp.int32(0))
        parts = [(held, Layout(shapes).split(told)) for held, told in answers]

        def one(learner: LearnerState, parts: list[Any]) -> LearnerState:
            gradients, metrics = weighed(parts)
            key = learner.state.key
            aux = Aux(metrics, jnp.zeros(0))
            gradients = gradients._replace(mask=mask)
            return finish(self._algorithm, learner, Ready(None, None, key, key), gradients, aux)[0]

        return over_seeds(one, self.num_seeds)(learner, parts)

    def _tell(self, state: Any, experience: Any, place: Array, mask: Any) -> Any:
        def one(state: Any, experience: Any, place: Array) -> Any:
            state = state._replace(key=jax.random.fold_in(state.key, place))
            now = ready(self._algorithm, self._buffer, state, experience)
            gradients, aux = self._algorithm.gradients(state, now.batch, now.key, mask)
            # Before the first whole sequence there are steps, but nothing to draw.
            held = jnp.where(jnp.any(now.batch.weight > 0), jnp.sum(experience.stored), 0)
            return held, (gradients._replace(mask=None), aux.metrics)

        return over_seeds(one, self.num_seeds, shared=(2,))(state, experience, place)


def _first_of(leaf: Array, count: int) -> Any:
    """The shape of a share of [K, rows, ...]."""
    num_seeds, rows, *rest = leaf.shape
    return jax.ShapeDtypeStruct((num_seeds, rows // count, *rest), leaf.dtype)
