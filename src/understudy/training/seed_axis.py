"""The member axis: K independent agents as one program.

Everything the engine carries has a leading axis of K members. Functions are written for one
member and lifted here.
"""

from collections.abc import Callable
from typing import Any

import jax

from understudy.types import Key, Tree


def over_members(function: Callable[..., Any], members: int, shared: tuple[int, ...] = ()):
    """Lift a one-member function over the member axis of all its arguments but the `shared`
    ones (by position), which stay unbatched, so that conditionals on them stay conditionals.

    For one member the axis is peeled off and put back, which costs nothing, instead of making
    every product a batched one.
    """

    def lifted(*arguments: Tree) -> Tree:
        if members > 1:
            axes = tuple(None if place in shared else 0 for place in range(len(arguments)))
            return jax.vmap(function, in_axes=axes)(*arguments)
        single = [
            argument if place in shared else jax.tree.map(lambda x: x[0], argument)
            for place, argument in enumerate(arguments)
        ]
        return jax.tree.map(lambda x: x[None], function(*single))

    return lifted


def member_keys(seed: int, members: int, stream: int) -> Key:
    """One key per member; member i of seed s has the key of the single run of seed s + i."""
    keys = [jax.random.fold_in(jax.random.PRNGKey(seed + i), stream) for i in range(members)]
    return jax.numpy.stack(keys)


# The streams of the seed tree: no two purposes ever draw from the same one.
INITIALIZATION, ACTING, ENVIRONMENT, SELECTION, EVALUATION = range(5)


def take_member(tree: Tree, index: int) -> Tree:
    """Member `index` with an axis of one, as a run of its own would carry it."""
    return jax.tree.map(lambda x: x[index : index + 1], tree)
