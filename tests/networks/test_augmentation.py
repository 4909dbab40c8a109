"""Random shifts of pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.networks.augmentation import random_shift

KEY = jax.random.PRNGKey(0)
LAYOUTS = [
    ((4, 5), 1, (0, 1)),
    ((4, 5, 2), 1, (0, 1)),
    ((2, 4, 5), 1, (1, 2)),
    ((6, 4, 5), 6, (1, 2)),
    ((3, 4, 5, 2), 3, (1, 2)),
]


def shift(images, pad, frames=1, key=KEY):
    return np.asarray(random_shift(jnp.asarray(images), key, pad, frames))


def crops(image, plane, pad):
    """All (2·pad + 1)² of them."""
    widths = [(pad, pad) if axis in plane else (0, 0) for axis in range(image.ndim)]
    padded = np.pad(image, widths, mode="edge")
    for top in range(2 * pad + 1):
        for left in range(2 * pad + 1):
            place = [slice(None)] * image.ndim
            for axis, start in zip(plane, (top, left), strict=True):
                place[axis] = slice(start, start + image.shape[axis])
            yield (top, left), padded[tuple(place)]


@pytest.mark.parametrize(("shape", "frames", "plane"), LAYOUTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_each_picture_is_one_of_its_crops_and_every_crop_occurs(shape, frames, plane, dtype):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    shifted = shift(np.stack([image] * 200), 1, frames)
    assert shifted.dtype == dtype and shifted.shape == (200, *shape)
    possible = dict(crops(image, plane, 1))
    seen = []
    for picture in shifted:
        matches = [place for place, crop in possible.items() if (crop == picture).all()]
        assert len(matches) == 1
        seen += matches
    assert set(seen) == set(possible)
    counts = np.unique(np.asarray(seen), axis=0, return_counts=True)[1]
    assert counts.min() > 200 / 9 / 4  # each about as often as the others


def test_without_a_pad_nothing_moves():
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5), np.uint8)
    np.testing.assert_array_equal(shift(images, 0), images)


def test_a_row_draws_its_own_shift():
    images = np.random.default_rng(0).integers(0, 256, (8, 6, 6, 1), np.uint8)
    whole = shift(images, 2)
    np.testing.assert_array_equal(shift(images[:5], 2), whole[:5])
    np.testing.assert_array_equal(shift(np.stack([*images[:5], *images[2:5]]), 2)[:5], whole[:5])
    other = shift(images, 2, key=jax.random.PRNGKey(1))
    assert (other != whole).any()
