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


def parts(mlp):
    """The weights of hidden layers, and a (mean, variance) for each BatchNorm."""
    statistics = [tuple(by_hand.numbers(norm.statistics))[:2] for norm in mlp.norms]
    return by_hand.numbers(without_statistics(mlp)), statistics
