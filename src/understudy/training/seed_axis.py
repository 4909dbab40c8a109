"""The seed axis: K independent agents as one program.

All states have a leading axis of K seeds. Functions are written for one seed and lifted here.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from understudy.types import Key, Tree

PROGRAM_PREFIX = "understudy_"  # of the names of this library's programs


def over_seeds(function: Callable[..., Any], num_seeds: int, shared: tuple[int, ...] = ()):
    """Lift a one-seed function over the seed axis of all its arguments but the `shared`
    ones (by position), which stay unbatched, so that conditionals on them stay conditionals.

    For one seed the axis is removed and added again: unbatched products are faster.
    """

    def lifted(*arguments: Tree) -> Tree:
        if num_seeds > 1:
            axes = tuple(None if place in shared else 0 for place in range(len(arguments)))
            return jax.vmap(function, in_axes=axes)(*arguments)
        single = [
            argument if place in shared else jax.tree.map(lambda x: x[0], argument)
            for place, argument in enumerate(arguments)
        ]
        return jax.tree.map(lambda x: x[None], function(*single))

    # The name of the program in messages and profiles; a `partial` has none of its own.
    lifted.__name__ = PROGRAM_PREFIX + getattr(getattr(function, "func", function), "__name__", "")
    return lifted


def seed_keys(seed: int, num_seeds: int, stream: int) -> Key:
    """One key per seed. Seed i of a run that begins at seed s has the key of the single run of seed
    s + i."""
    keys = [jax.random.fold_in(jax.random.PRNGKey(seed + i), stream) for i in range(num_seeds)]
    return jax.numpy.stack(keys)


@jax.jit
def fold_in(keys: Key, number: int | Array) -> Key:
    """A new key for each of several, by a number."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


# The streams of the seed tree: no two purposes ever draw from the same one.
INITIALIZATION, ACTING, ENVIRONMENT, SELECTION, EVALUATION = range(5)


def take_seed(tree: Tree, index: int) -> Tree:
    """Seed `index` with an axis of one, as a run of its own would carry it."""
    return jax.tree.map(lambda x: x[index : index + 1], tree)
