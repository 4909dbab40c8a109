"""Convolutional encoders, against convolutions written as loops, and the layouts of pictures."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from understudy.networks.cnn import (
    Conv,
    Residual,
    conv_by_matmul,
    default_cnn,
    image_axes,
    image_shape,
    make_cnn,
    max_pool,
    to_channels_last,
)
from understudy.types import ConfigError

KEY = jax.random.PRNGKey(0)


def looped(x, weight, bias, stride, padded):
    """A convolution, one output at a time."""
    size = weight.shape[0]
    if padded:
        x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    places = [range(0, x.shape[axis] - size + 1, stride) for axis in (1, 2)]
    columns = [
        [
            np.einsum("nhwi,hwio->no", x[:, top : top + size, left : left + size], weight)
            for left in places[1]
        ]
        for top in places[0]
    ]
    return np.asarray(columns).transpose(2, 0, 1, 3) + bias


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, "VALID"), (4, 2, "VALID"), (3, 1, "SAME")]
)
def test_a_convolution_is_that_of_loops(kernel, stride, padding):
    layer = Conv(2, 5, kernel, KEY, stride=stride, padding=padding)
    x = np.random.default_rng(0).normal(size=(3, 7, 9, 2)).astype(np.float32)
    expected = looped(
        x, np.asarray(layer.weight), np.asarray(layer.bias), stride, padding == "SAME"
    )
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [4, 5])
def test_pooling_takes_the_largest_of_nine(size):
    x = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype(np.float32)
    # Where nothing is left over, padding begins after the last pixel.
    before = size % 2
    padded = np.pad(x, [(0, 0), (before, 1), (before, 1), (0, 0)], constant_values=-np.inf)
    half = (size + 1) // 2
    expected = np.zeros((2, half, half, 3), np.float32)
    for top in range(half):
        for left in range(half):
            window = padded[:, 2 * top : 2 * top + 3, 2 * left : 2 * left + 3]
            expected[:, top, left] = window.max(axis=(1, 2))
    np.testing.assert_array_equal(max_pool(jnp.asarray(x)), expected)


def test_a_residual_block_without_weights_changes_nothing():
    block = jax.tree.map(jnp.zeros_like, Residual(3, KEY, "kaiming"))
    x = jax.random.normal(KEY, (2, 4, 4, 3))
    np.testing.assert_array_equal(block(x), x)


def test_the_small_one_by_hand():
    encoder = make_cnn("small", (4, 5, 2), KEY, features=6)
    x = np.random.default_rng(1).normal(size=(3, 4, 5, 2)).astype(np.float32)
    own = encoder.convolutions[0]
    seen = np.maximum(looped(x, np.asarray(own.weight), np.asarray(own.bias), 1, False), 0)
    expected = np.maximum(seen.reshape(3, -1) @ encoder.linear.weight + encoder.linear.bias, 0)
    np.testing.assert_allclose(encoder(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_sizes_are_those_of_the_papers():
    nature, impala, small = jax.eval_shape(  # only shapes are asked for
        lambda key: (
            make_cnn("nature", (84, 84, 4), key),
            make_cnn("impala", (84, 84, 4), key),
            make_cnn("small", (10, 10, 4), key),
        ),
        KEY,
    )
    assert [c.weight.shape for c in nature.convolutions] == [
        (8, 8, 4, 32),
        (4, 4, 32, 64),
        (3, 3, 64, 64),
    ]
    assert nature.linear.weight.shape == (7 * 7 * 64, 512)
    assert impala.linear.weight.shape == (11 * 11 * 32, 256)
    convolutions = [x for x in jax.tree.leaves(impala) if x.ndim == 4]
    assert len(convolutions) == 15
    assert small.linear.weight.shape == (8 * 8 * 16, 128)


@pytest.mark.parametrize(("name", "side"), [("nature", 36), ("impala", 9), ("small", 5)])
def test_any_leading_axes_and_members(name, side):
    shape = (side, side + 1, 2)
    make = jax.jit(jax.vmap(lambda key: make_cnn(name, shape, key, 8)))
    members = make(jax.random.split(KEY, 2))
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(members))
    x = np.random.default_rng(0).random((2, 3, 1, *shape), np.float32)
    both = jax.jit(jax.vmap(lambda encoder, x: encoder(x)))(members, x)
    assert both.shape == (2, 3, 1, 8)
    second = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[1]), members)
    answer = jax.jit(lambda encoder, x: encoder(x))
    alone = answer(second, x[1, 2, 0])
    np.testing.assert_allclose(alone, np.asarray(both)[1, 2, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(jax.eval_shape(answer, second, x[1, :0]).shape, (0, 1, 8))
    gradient = jax.jit(jax.grad(lambda encoder: jnp.sum(encoder(jnp.asarray(x[1])))))(second)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("initialization", ["kaiming", "orthogonal"])
def test_a_convolution_begins_like_a_linear_layer(initialization):
    layer = Conv(2, 5, 3, KEY, initialization=initialization)
    flat = np.asarray(layer.weight, np.float64).reshape(18, 5)
    if initialization == "orthogonal":
        np.testing.assert_allclose(flat.T @ flat, 2 * np.eye(5), atol=1e-5)
        np.testing.assert_array_equal(layer.bias, np.zeros(5))
    else:
        assert 0.9 * 18**-0.5 < np.abs(flat).max() <= 18**-0.5


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("nature", (35, 84, 1), "36×36 or more, got 35×84: use 'small'"),
        ("small", (10, 2, 4), "3×3 or more, got 10×2: use 'impala'"),
    ],
)
def test_a_picture_that_is_too_small_is_explained(name, shape, told):
    with pytest.raises(ConfigError, match=told):
        make_cnn(name, shape, KEY)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((36, 36, 1), "nature"),
        ((84, 84, 4), "nature"),
        ((35, 99, 1), "small"),
        ((10, 10, 7), "small"),
    ],
)
def test_what_fits_is_chosen(shape, name):
    assert default_cnn(shape) == name
    picture = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    jax.eval_shape(lambda key, x: make_cnn(name, shape, key)(x), KEY, picture)


@pytest.mark.parametrize(
    ("shape", "frames", "seen", "order"),
    [
        ((5, 6), 1, (5, 6, 1), "hw"),
        ((5, 6, 3), 1, (5, 6, 3), "hwc"),
        ((10, 10, 10), 1, (10, 10, 10), "hwc"),
        ((3, 5, 6), 1, (5, 6, 3), "chw"),
        ((4, 5, 6), 4, (5, 6, 4), "khw"),
        ((6, 5, 5), 6, (5, 5, 6), "khw"),  # a stack that is longer than its frames are high
        ((2, 5, 6, 3), 2, (5, 6, 6), "khwc"),
        ((2, 5, 6, 3), 1, (5, 6, 6), "khwc"),  # stacked by the environment itself
        ((2, 3, 5, 6), 2, (5, 6, 6), "kchw"),
    ],
)
def test_every_layout_becomes_channels_last(shape, frames, seen, order):
    assert image_shape(shape, frames) == seen
    assert image_axes(shape, frames) == (order.index("h"), order.index("w"))
    images = np.random.default_rng(0).integers(0, 256, (2, 3, *shape), np.uint8)
    channels = "".join(axis for axis in order if axis not in "hw")
    turned = np.einsum(f"...{order}->...hw{channels}", images).reshape(2, 3, *seen)
    ours = to_channels_last(jnp.asarray(images), shape, frames)
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, turned / np.float32(255), rtol=1e-6)


def test_planes_of_yes_and_no_are_zeros_and_ones():
    board = np.random.default_rng(0).random((4, 4, 2)) < 0.5
    ours = to_channels_last(jnp.asarray(board), (4, 4, 2))
    assert ours.dtype == jnp.float32
    np.testing.assert_array_equal(ours, board.astype(np.float32))


@pytest.mark.parametrize(("shape", "frames"), [((5,), 1), ((4, 5), 4), ((1, 2, 3, 4, 5), 1)])
def test_what_is_no_picture_is_named(shape, frames):
    with pytest.raises(ConfigError, match=r"an image has the shape"):
        image_shape(shape, frames)


@pytest.mark.parametrize(("kernel", "stride"), [(8, 4), (4, 2), (3, 1), (3, 2), (1, 1), (5, 3)])
def test_products_of_patches_are_the_convolution(kernel, stride):
    """The form that accelerators take, with its gradient, where this machine takes the other."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 13, 17, 3)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(kernel, kernel, 3, 5)), jnp.float32)
    slope = rng.normal(size=(2, (13 - kernel) // stride + 1, (17 - kernel) // stride + 1, 5))
    slope = jnp.asarray(slope, jnp.float32)

    def library(x, weight):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "VALID", dimension_numbers=layout
        )

    @jax.jit
    def both(x, weight, slope):
        forms = library, lambda x, weight: conv_by_matmul(x, weight, stride)
        pairs = [jax.vjp(form, x, weight) for form in forms]
        return [(answer, pull(slope)) for answer, pull in pairs]

    (answer, want), (ours, got) = both(x, weight, slope)
    np.testing.assert_allclose(ours, answer, atol=1e-4)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
