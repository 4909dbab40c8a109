"""Hidden layers with BatchNorm or BatchRenorm once more, in NumPy and float64."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.algorithms import by_hand
from understudy.networks.batch_norm import without_statistics


def like_trained(tree, updates=2.0, seed=1):
    """The same tree with numbers as after some training."""
    rng = np.random.default_rng(seed)

    def drawn(path, leaf):
        name = getattr(path[-1], "name", "")
        if name == "updates":
            return jnp.full(leaf.shape, updates)
        x = rng.uniform(0.3, 2.0, leaf.shape) if name in ("variance", "scale") else None
        return jnp.asarray(rng.normal(0.0, 0.5, leaf.shape) if x is None else x, jnp.float32)

    return jax.tree_util.tree_map_with_path(drawn, tree)


def forward(weights, statistics, x, counted, batch_norm, corrections=None):
    """The features in NumPy. `weights` are those of `without_statistics`, `statistics` a list of
    (mean, variance); None for `counted` is evaluation. Also returns the corrections of BatchRenorm
    and the moments of the batch."""
    weights = list(weights)
    layers = len(statistics) - 1
    size = layers if batch_norm else 2 * layers
    linear, norms = weights[:size], weights[size:]
    used, moments = [], []

    def normalize(x, place):
        mean, variance = statistics[place]
        scale, offset = norms[2 * place], norms[2 * place + 1]
        if counted is None:
            return (x - mean) / np.sqrt(variance + 1e-3) * scale + offset
        m, v = x[counted].mean(0), x[counted].var(0)
        moments.append((m, v))
        y = (x - m) / np.sqrt(v + 1e-3)
        if not batch_norm:
            deviation = np.sqrt(variance + 1e-3)
            r = np.clip(np.sqrt(v + 1e-3) / deviation, 1 / 3, 3)
            d = np.clip((m - mean) / deviation, -5, 5)
            used.append((r, d) if corrections is None else corrections[place])
            y = y * used[-1][0] + used[-1][1]
        return y * scale + offset

    x = normalize(x, 0)
    for place in range(layers):
        if batch_norm:
            x = np.tanh(normalize(x @ linear[place], place + 1))
        else:
            x = normalize(np.tanh(x @ linear[2 * place] + linear[2 * place + 1]), place + 1)
    return x, used, moments


def residual_forward(weights, statistics, x, counted, activation=np.tanh):
    """The features of FlashSAC's hidden layers and the moments of the batch. Arguments are those of
    `forward`; `weights` are in the order of the computation."""
    blocks = (len(weights) - 4) // 6
    weights, statistics, moments = iter(weights), iter(statistics), []

    def normalize(x, scale, offset):
        mean, variance = next(statistics)
        if counted is not None:
            mean, variance = x[counted].mean(0), x[counted].var(0)
            moments.append((mean, variance))
        return (x - mean) / np.sqrt(variance + 1e-5) * scale + offset

    x = normalize(x, next(weights), next(weights)) @ next(weights)
    for _ in range(blocks):
        inner = x
        for _ in range(2):
            inner = inner @ next(weights)
            inner = activation(normalize(inner, next(weights), next(weights)))
        x = x + inner
    mean_square = np.mean(x**2, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + 1e-6) * next(weights), moments


def parts(mlp):
    """The weights of hidden layers, and a (mean, variance) for each BatchNorm."""
    statistics = [tuple(by_hand.numbers(norm.statistics))[:2] for norm in mlp.norms]
    return by_hand.numbers(without_statistics(mlp)), statistics
