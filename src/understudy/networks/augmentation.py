"""Pictures changed in ways that leave their meaning."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped

from understudy.networks.cnn import picture_axes
from understudy.types import Key


def random_shift(
    images: Shaped[Array, "rows *picture"],
    shape: tuple[int, ...],
    pad: int,
    key: Key,
    row: Int32[Array, " rows"],
    frames: int = 1,
) -> Shaped[Array, "rows *picture"]:
    """Each picture moved by up to `pad` pixels, its edges repeated (Kostrikov et al., 2021, DrQ).

    `shape` is one picture's, as the environment shows it; the frames of a stack move together. A
    row's shift depends on `row`, its place in the whole batch, and not on the rows beside it.
    """
    if pad == 0:
        return images
    plane = picture_axes(shape, frames)
    widths = [(pad, pad) if axis in plane else (0, 0) for axis in range(len(shape))]

    def shift(picture: Array, place: Array) -> Array:
        own = jax.random.randint(jax.random.fold_in(key, place), (2,), 0, 2 * pad + 1)
        start = jnp.zeros(len(shape), jnp.int32).at[jnp.array(plane)].set(own)
        return jax.lax.dynamic_slice(jnp.pad(picture, widths, mode="edge"), start, shape)

    return jax.vmap(shift)(images, row)
