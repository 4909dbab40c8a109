"""Convolutional encoders of images, and the conversion of environments' images for them.

Encoders take float32 with channels last, [*batch, height, width, channels]. Environments return
[H, W], [H, W, C], [C, H, W] and stacks of these, with the frames first; `image_axes` alone decides
which axis is which.
"""

import math
from functools import partial
from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from understudy.networks.mlp import INITIALIZERS, Linear
from understudy.types import ConfigError, Key


@final
class Conv(eqx.Module):
    """A convolution of channels-last images."""

    weight: Float[Array, "height width inputs outputs"]
    bias: Float[Array, " outputs"]
    stride: int = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        key: Key,
        *,
        stride: int = 1,
        padding: str = "VALID",
        initialization: str = "kaiming",
    ):
        # A convolution is a linear layer on every patch, and is initialized like one.
        layer = Linear(kernel * kernel * inputs, outputs, key, INITIALIZERS[initialization])
        self.weight = layer.weight.reshape(kernel, kernel, inputs, outputs)
        self.bias = layer.bias
        self.stride = stride
        self.padding = padding

    def __call__(self, x: Float[Array, "rows H W inputs"]) -> Float[Array, "rows h w outputs"]:
        stride, padding = self.stride, self.padding

        def conv_by_library(x: Array, weight: Array) -> Array:
            layout = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x, weight, (stride, stride), padding, dimension_numbers=layout
            )

        if padding != "VALID":  # the patches of a padded image would take nine times its memory
            return self.bias + conv_by_library(x, self.weight)
        # The gradient of Nature's network for 32 images on an H200 takes 0.31 ms instead of
        # 0.52 ms, for three seeds at once 0.53 ms instead of 1.24 ms. On a CPU it is slower.
        return self.bias + jax.lax.platform_dependent(
            x, self.weight, cpu=conv_by_library, default=partial(conv_by_matmul, stride=stride)
        )


def conv_by_matmul(
    x: Float[Array, "rows H W inputs"],
    weight: Float[Array, "height width inputs outputs"],
    stride: int,
) -> Float[Array, "rows h w outputs"]:
    """Compute a convolution without padding as one product of all patches with the weights.

    If the stride divides the kernel, blocks of stride × stride pixels become channels first, so
    that patches consist of few large pieces."""
    rows, height, width, inputs = x.shape
    kernel, outputs = weight.shape[0], weight.shape[-1]
    high, wide = ((side - kernel) // stride + 1 for side in (height, width))
    if stride > 1 and kernel % stride == 0:
        block, kernel = stride, kernel // stride
        down, across = high + kernel - 1, wide + kernel - 1
        x = x[:, : down * block, : across * block]
        x = x.reshape(rows, down, block, across, block, inputs).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(rows, down, across, block * block * inputs)
        weight = weight.reshape(kernel, block, kernel, block, inputs, outputs)
        weight, stride = weight.transpose(0, 2, 1, 3, 4, 5), 1
    pieces = [
        x[:, i : i + (high - 1) * stride + 1 : stride, j : j + (wide - 1) * stride + 1 : stride]
        for i in range(kernel)
        for j in range(kernel)
    ]
    return jnp.concatenate(pieces, axis=-1) @ weight.reshape(-1, outputs)


@final
class SequentialCNN(eqx.Module):
    """Convolutions with relu after each, then a linear layer with relu."""

    convolutions: tuple[Conv, ...]
    linear: Linear

    def __init__(
        self,
        layers: tuple[tuple[int, int, int], ...],  # outputs, kernel and stride of each convolution
        shape: tuple[int, int, int],
        key: Key,
        features: int,
        initialization: str,
    ):
        *keys, linear_key = jax.random.split(key, len(layers) + 1)
        height, width, inputs = shape
        convolutions = []
        for (outputs, kernel, stride), own in zip(layers, keys, strict=True):
            convolutions.append(
                Conv(inputs, outputs, kernel, own, stride=stride, initialization=initialization)
            )
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            inputs = outputs
        self.convolutions = tuple(convolutions)
        flat = height * width * inputs
        self.linear = Linear(flat, features, linear_key, INITIALIZERS[initialization])

    def __call__(self, x: Float[Array, "*batch H W C"]) -> Float[Array, "*batch features"]:
        images, batch = _flatten_batch(x)
        for convolution in self.convolutions:
            images = jax.nn.relu(convolution(images))
        return _features(self.linear, images, batch)


@final
class Residual(eqx.Module):
    """x + conv(relu(conv(relu(x))))."""

    first: Conv
    second: Conv

    def __init__(self, channels: int, key: Key, initialization: str):
        self.first, self.second = (
            Conv(channels, channels, 3, own, padding="SAME", initialization=initialization)
            for own in jax.random.split(key)
        )

    def __call__(self, x: Float[Array, "rows H W C"]) -> Float[Array, "rows H W C"]:
        return x + self.second(jax.nn.relu(self.first(jax.nn.relu(x))))


@final
class Section(eqx.Module):
    """Convolve, halve the height and width, and apply two residual blocks."""

    convolution: Conv
    blocks: tuple[Residual, Residual]

    def __init__(self, inputs: int, outputs: int, key: Key, initialization: str):
        keys = jax.random.split(key, 3)
        self.convolution = Conv(
            inputs, outputs, 3, keys[0], padding="SAME", initialization=initialization
        )
        first, second = (Residual(outputs, own, initialization) for own in keys[1:])
        self.blocks = (first, second)

    def __call__(self, x: Float[Array, "rows H W inputs"]) -> Float[Array, "rows h w outputs"]:
        x = max_pool(self.convolution(x))
        for block in self.blocks:
            x = block(x)
        return x


@final
class ImpalaCNN(eqx.Module):
    """Fifteen convolutions with shortcuts (Espeholt et al., 2018, figure 3, right)."""

    sections: tuple[Section, ...]
    linear: Linear

    def __init__(self, shape: tuple[int, int, int], key: Key, features: int, initialization: str):
        keys = jax.random.split(key, 4)
        widths = (shape[2], 16, 32, 32)
        self.sections = tuple(
            Section(widths[place], widths[place + 1], keys[place], initialization)
            for place in range(3)
        )
        flat = math.prod(-(-side // 8) for side in shape[:2]) * widths[-1]  # halved thrice
        self.linear = Linear(flat, features, keys[3], INITIALIZERS[initialization])

    def __call__(self, x: Float[Array, "*batch H W C"]) -> Float[Array, "*batch features"]:
        images, batch = _flatten_batch(x)
        for section in self.sections:
            images = section(images)
        return _features(self.linear, jax.nn.relu(images), batch)


class Architecture(NamedTuple):
    """The layers of a `SequentialCNN` and the images it is for."""

    layers: tuple[tuple[int, int, int], ...]  # outputs, kernel and stride of each convolution
    features: int
    smallest: int  # height and width of an image
    alternative: str  # for smaller images


SEQUENTIAL = {
    # Mnih et al. (2015)
    "nature": Architecture(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512, 36, "'small'"),
    # Young and Tian (2019), for the boards of MinAtar
    "small": Architecture(((16, 3, 1),), 128, 3, "'impala', which takes any size"),
}


def make_cnn(
    name: str,
    shape: tuple[int, int, int],
    key: Key,
    features: int | None = None,
    initialization: str = "kaiming",
) -> SequentialCNN | ImpalaCNN:
    """Make the encoder `name` for images [H, W, C]; `features` defaults to that of its paper."""
    if name == "impala":
        return ImpalaCNN(shape, key, features or 256, initialization)
    layers, default, smallest, alternative = SEQUENTIAL[name]
    if min(shape[:2]) < smallest:
        raise ConfigError(
            f"the encoder '{name}' needs images of {smallest}×{smallest} or more, "
            f"got {shape[0]}×{shape[1]}: use {alternative}"
        )
    return SequentialCNN(layers, shape, key, features or default, initialization)


def default_cnn(shape: tuple[int, int, int]) -> str:
    """Return the name of the encoder for images [H, W, C] if the config names none."""
    return "nature" if min(shape[:2]) >= SEQUENTIAL["nature"].smallest else "small"


def max_pool(x: Float[Array, "rows H W C"]) -> Float[Array, "rows h w C"]:
    """Take the maximum of 3×3 pixels at every second pixel."""
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def image_axes(shape: tuple[int, ...], frames: int = 1) -> tuple[int, int]:
    """Return the axes of one observation that are its height and width; the others are channels.

    Channels come first if that axis is shorter than both others, and last otherwise.
    """
    stacked = int(frames > 1 or len(shape) == 4)
    one = shape[stacked:]
    if len(one) not in (2, 3):
        raise ConfigError(
            f"an image has the shape [H, W], [H, W, C] or [C, H, W], or is a stack of these: "
            f"{list(shape)} is none"
        )
    channels_first = int(len(one) == 3 and one[0] < min(one[1:]))
    return stacked + channels_first, stacked + channels_first + 1


def image_shape(shape: tuple[int, ...], frames: int = 1) -> tuple[int, int, int]:
    """Return height, width and channels of an observation for an encoder."""
    height, width = image_axes(shape, frames)
    channels = math.prod(shape) // (shape[height] * shape[width])
    return shape[height], shape[width], channels


def to_channels_last(
    image: Shaped[Array, "..."], shape: tuple[int, ...], frames: int = 1
) -> Float[Array, "*batch height width channels"]:
    """Convert images [*batch, *shape] for an encoder; bytes are scaled to [0, 1]."""
    batch = image.shape[: image.ndim - len(shape)]
    plane = image_axes(shape, frames)
    others = [axis for axis in range(len(shape)) if axis not in plane]
    order = [*range(len(batch)), *(len(batch) + axis for axis in (*plane, *others))]
    turned = image.transpose(order).reshape(*batch, *image_shape(shape, frames))
    numbers = turned.astype(jnp.float32)
    return numbers / 255 if image.dtype == jnp.uint8 else numbers


def _flatten_batch(x: Float[Array, "*batch H W C"]) -> tuple[Array, tuple[int, ...]]:
    """Put all images on one axis, as convolutions need them; also return the batch axes."""
    batch = x.shape[:-3]
    return x.reshape(math.prod(batch), *x.shape[-3:]), batch


def _features(linear: Linear, images: Float[Array, "rows h w c"], batch: tuple[int, ...]) -> Array:
    features = jax.nn.relu(linear(images.reshape(images.shape[0], math.prod(images.shape[1:]))))
    return features.reshape(*batch, features.shape[-1])
