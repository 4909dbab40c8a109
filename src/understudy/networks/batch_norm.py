"""Hidden layers with BatchNorm (Ioffe & Szegedy, arXiv 1502.03167) or BatchRenorm (Ioffe, arXiv
1702.03275).

A call normalizes by the running statistics. `train` normalizes by the statistics of its rows, and
returns the change of the running ones. These are leaves of the network that no optimizer moves: in
the gradient of a network, their places hold their changes.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from understudy.networks.mlp import ACTIVATIONS, INITIALIZERS, Initializer, Linear, Weights
from understudy.types import Key, Tree

MOMENTUM = 0.99  # of the running statistics
EPSILON = 1e-3  # added to variances, where a network has no value of its own
MOST_R, MOST_D = 3.0, 5.0  # bounds of BatchRenorm's corrections

Vector = Float[Array, " size"]
Rows = Float[Array, "rows size"]
Counted = Bool[Array, " rows"]  # rows that are steps


class BatchStatistics(NamedTuple):
    """Running statistics of the rows that a layer has seen in training; or their change."""

    mean: Any  # [size]
    variance: Any  # [size]
    updates: Any  # so far, a float; None without BatchRenorm


Changes = tuple[BatchStatistics, ...]  # of each BatchNorm of a network


@final
class BatchNorm(eqx.Module):
    """Normalize each feature over the rows of a batch, then scale and shift it."""

    scale: Vector
    offset: Vector
    statistics: BatchStatistics
    warm_up: int | None = eqx.field(static=True)  # updates before BatchRenorm; None: BatchNorm
    epsilon: float = eqx.field(static=True)
    projected: bool = eqx.field(static=True)  # `project_weights` bounds scale and offset

    def __init__(
        self,
        size: int,
        warm_up: int | None = None,
        *,
        epsilon: float = EPSILON,
        projected: bool = False,
    ):
        self.scale = jnp.ones(size)
        self.offset = jnp.zeros(size)
        updates = None if warm_up is None else jnp.zeros(())
        self.statistics = BatchStatistics(jnp.zeros(size), jnp.ones(size), updates)
        self.warm_up, self.epsilon, self.projected = warm_up, epsilon, projected

    def __call__(self, x: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        running = self.statistics
        standardized = (x - running.mean) * jax.lax.rsqrt(running.variance + self.epsilon)
        return standardized * self.scale + self.offset

    def train(self, x: Rows, counted: Counted) -> tuple[Rows, BatchStatistics]:
        """Return the rows, normalized by the statistics of those that are counted (their variance
        is divided by their number), and the change of the running statistics."""
        mean, variance = jax.lax.stop_gradient(_mean_and_variance(x, counted))
        running, scale, offset, updates = self.statistics, self.scale, self.offset, None
        if self.warm_up is not None:
            updates = jnp.ones(())
            r, d = _corrections(mean, variance, running, self.epsilon)
            warmed_up = running.updates >= self.warm_up
            offset = offset + scale * jnp.where(warmed_up, d, 0.0)
            scale = scale * jnp.where(warmed_up, r, 1.0)
        change = BatchStatistics(
            (1.0 - MOMENTUM) * (mean - running.mean),
            (1.0 - MOMENTUM) * (variance - running.variance),
            updates,
        )
        inverse_deviation = jax.lax.rsqrt(variance + self.epsilon)
        y = _standardize(x, counted, mean, inverse_deviation, scale, offset)
        return y, jax.lax.stop_gradient(change)


def _mean_and_variance(x: Rows, counted: Counted) -> tuple[Vector, Vector]:
    """Return mean and variance in one pass over the rows. They are taken relative to one of the
    rows: otherwise the difference of the squares would lose the digits of a small variance."""
    # `where` and not a product: a row that is no step may contain anything.
    mask, count = counted[:, None], jnp.maximum(jnp.sum(counted), 1)
    origin = jnp.where(jnp.any(counted), x[jnp.argmax(counted)], 0.0)
    shifted = jnp.where(mask, x - origin, 0.0)
    mean, square = (jnp.sum(power, axis=0) / count for power in (shifted, shifted**2))
    return origin + mean, jnp.maximum(square - mean**2, 0.0)


@jax.custom_vjp
def _standardize(
    x: Rows,
    counted: Counted,
    mean: Vector,
    inverse_deviation: Vector,
    scale: Vector,
    offset: Vector,
) -> Rows:
    """Return (x − mean)/σ·scale + offset. Mean and 1/σ are those of the counted rows: the gradient
    of x contains theirs, in one pass over the rows (automatic differentiation takes several)."""
    return (x - mean) * inverse_deviation * scale + offset


def _standardize_forward(
    x: Rows, counted: Counted, mean: Vector, inverse_deviation: Vector, scale: Vector,
    offset: Vector,
) -> tuple[Rows, Any]:  # fmt: skip
    y = _standardize(x, counted, mean, inverse_deviation, scale, offset)
    return y, (x, counted, mean, inverse_deviation, scale)


def _standardize_backward(kept: Any, of_y: Rows) -> tuple[Any, ...]:
    """With z = (x − mean)/σ: ∂z/∂x of a counted row contains −(1 + z·zⱼ)/n of every row j."""
    x, counted, mean, inverse_deviation, scale = kept
    z = (x - mean) * inverse_deviation
    of_offset, of_scale = jnp.sum(of_y, axis=0), jnp.sum(of_y * z, axis=0)
    share = counted[:, None] / jnp.maximum(jnp.sum(counted), 1)
    of_x = scale * inverse_deviation * (of_y - share * (of_offset + z * of_scale))
    return of_x, None, None, None, of_scale, of_offset


_standardize.defvjp(_standardize_forward, _standardize_backward)


def _corrections(
    mean: Vector, variance: Vector, running: BatchStatistics, epsilon: float
) -> tuple[Vector, Vector]:
    """Return r and d of BatchRenorm's algorithm 1. No gradient goes through them."""
    deviation = jnp.sqrt(running.variance + epsilon)
    r = jnp.clip(jnp.sqrt(variance + epsilon) / deviation, 1.0 / MOST_R, MOST_R)
    d = jnp.clip((mean - running.mean) / deviation, -MOST_D, MOST_D)
    return jax.lax.stop_gradient((r, d))


@final
class Projection(eqx.Module):
    """x·W on the last axis: a linear layer before BatchNorm, which would remove a bias."""

    weight: Weights

    def __init__(self, inputs: int, outputs: int, key: Key, initializer: Initializer):
        self.weight = initializer(key, inputs, outputs)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return x @ self.weight


class BatchNormalized(eqx.Module):
    """Hidden layers with BatchNorm. Abstract."""

    sees_next: ClassVar[bool] = False  # an actor's batch contains the next observations, too
    norms: eqx.AbstractVar[tuple[BatchNorm, ...]]  # in the order of the computation

    @abstractmethod
    def apply(self, x: Array, normalize: Callable[[BatchNorm, Array], Array]) -> Array:
        """Return the features. `normalize` computes each of the norms, in their order."""

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        return self.apply(x, lambda norm, x: norm(x))

    def train(self, x: Rows, counted: Counted) -> tuple[Float[Array, "rows features"], Changes]:
        """Return the features of rows that are normalized by their own statistics, and the changes
        of the running statistics."""
        changes: list[BatchStatistics] = []

        def normalize(norm: BatchNorm, x: Array) -> Array:
            x, change = norm.train(x, counted)
            changes.append(change)
            return x

        return self.apply(x, normalize), tuple(changes)


@final
class BatchNormMLP(BatchNormalized):
    """Hidden layers with normalized inputs. BatchNorm comes before each activation (as in XQC),
    BatchRenorm after it (as in CrossQ)."""

    layers: tuple[Linear | Projection, ...]
    norms: tuple[BatchNorm, ...]  # the first one is that of the inputs
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden_sizes: tuple[int, ...],
        key: Key,
        *,
        activation: str = "relu",
        warm_up: int | None = None,
        initialization: str = "kaiming",
    ):
        """`warm_up` is the number of updates before BatchRenorm; None is BatchNorm."""
        sizes = (inputs, *hidden_sizes)
        keys = jax.random.split(key, len(hidden_sizes))
        initializer = INITIALIZERS[initialization]
        kind = Projection if warm_up is None else Linear
        self.layers = tuple(
            kind(before, after, own, initializer)
            for before, after, own in zip(sizes, hidden_sizes, keys, strict=False)
        )
        self.norms = tuple(BatchNorm(size, warm_up) for size in sizes)
        self.activation = activation

    @property
    def normalizes_first(self) -> bool:
        """Whether a hidden layer is normalized before its activation."""
        return self.norms[0].warm_up is None

    def apply(self, x: Array, normalize: Callable[[BatchNorm, Array], Array]) -> Array:
        activation = ACTIVATIONS[self.activation]
        x = normalize(self.norms[0], x)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            before, after = partial(normalize, norm), activation
            if not self.normalizes_first:
                before, after = after, before
            x = after(before(layer(x)))
        return x


def with_changes(gradient: BatchNormalized, changes: Changes) -> BatchNormalized:
    """Return the gradient of hidden layers with the changes of their running statistics."""
    return eqx.tree_at(
        lambda layers: tuple(norm.statistics for norm in layers.norms), gradient, changes
    )


def without_statistics(tree: Tree) -> Tree:
    """Return a tree with None in place of running statistics: the arrays that optimizers move."""
    return jax.tree.map(lambda x: None if _is_statistics(x) else x, tree, is_leaf=_is_statistics)


def move_statistics(old: Tree, moved: Tree, gradient: Tree) -> Tree:
    """Return the network that an optimizer has `moved`, `without_statistics`, with the statistics
    of the `old` one plus their changes in the gradient."""

    def one(old: Any, moved: Any, change: Any) -> Any:
        return jax.tree.map(jnp.add, old, change) if _is_statistics(old) else moved

    return jax.tree.map(one, old, moved, gradient, is_leaf=_is_statistics)


def _is_statistics(node: Any) -> bool:
    return isinstance(node, BatchStatistics)
