"""Random changes of images that do not change their meaning."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from understudy.networks.cnn import image_axes
from understudy.types import Batch, History, Key

Images = Shaped[Array, "rows *image"]


def random_shift(images: Images, key: Key, pad: int, frames: int = 1) -> Images:
    """Shift each image by up to `pad` pixels, repeating its edges (Kostrikov et al., 2021, DrQ).

    The frames of a stack move together. A row's shift depends on its place in the batch, and not on
    the rows beside it.
    """
    shape = images.shape[1:]
    plane = image_axes(shape, frames)
    widths = [(pad, pad) if axis in plane else (0, 0) for axis in range(len(shape))]

    def shift(image: Array, place: Array) -> Array:
        own = jax.random.randint(jax.random.fold_in(key, place), (2,), 0, 2 * pad + 1)
        start = jnp.zeros(len(shape), jnp.int32).at[jnp.array(plane)].set(own)
        return jax.lax.dynamic_slice(jnp.pad(image, widths, mode="edge"), start, shape)

    return jax.vmap(shift)(images, jnp.arange(len(images), dtype=jnp.int32))


def shift_images(batch: Batch, frames: int, most: int, key: Key) -> Batch:
    """Shift the images of each row by a few pixels; those of a sequence by the same."""
    here, there = jax.random.split(jax.random.fold_in(key, 1))
    seen, then = batch.observation, batch.next_observation
    move = partial(random_shift, pad=most, frames=frames)
    if isinstance(seen, History):  # one sequence, asked about at two times
        moved = jax.vmap(move, (1, None), 1)(seen.observation, here)
        seen, then = (dataclasses.replace(one, observation=moved) for one in (seen, then))
        return batch._replace(observation=seen, next_observation=then)
    return batch._replace(observation=move(seen, here), next_observation=move(then, there))
