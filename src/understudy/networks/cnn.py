"""Eyes: convolutional encoders of pictures, and the way from what environments show to them.

Encoders see float32 with channels last, [*batch, height, width, channels]. Environments show
[H, W], [H, W, C], [C, H, W] and stacks of these, the frames first; `picture_axes` alone decides
which axis is which.
"""

import math
from functools import partial
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from understudy.networks.initializers import INITIALIZERS
from understudy.networks.mlp import Linear
from understudy.types import ConfigError, Key

NATURE_SMALLEST, SMALL_SMALLEST = 36, 3


@final
class Conv(eqx.Module):
    """A convolution of channels-last pictures."""

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
        # A convolution is a linear layer on every patch, and begins like one.
        layer = Linear(kernel * kernel * inputs, outputs, key, INITIALIZERS[initialization])
        self.weight = layer.weight.reshape(kernel, kernel, inputs, outputs)
        self.bias = layer.bias
        self.stride = stride
        self.padding = padding

    def __call__(self, x: Float[Array, "rows H W inputs"]) -> Float[Array, "rows h w outputs"]:
        stride, padding = self.stride, self.padding

        def by_library(x: Array, weight: Array) -> Array:
            layout = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x, weight, (stride, stride), padding, dimension_numbers=layout
            )

        if padding != "VALID":  # the patches of a padded picture would take nine times its room
            return self.bias + by_library(x, self.weight)
        # The gradient of Nature's network, 32 pictures, on an H200: 0.31 ms against 0.52, and of
        # three members at once 0.53 against 1.24. On a CPU it is the other way round.
        return self.bias + jax.lax.platform_dependent(
            x, self.weight, cpu=by_library, default=partial(by_products, stride=stride)
        )


def by_products(
    x: Float[Array, "rows H W inputs"],
    weight: Float[Array, "height width inputs outputs"],
    stride: int,
) -> Float[Array, "rows h w outputs"]:
    """A convolution without padding as one product of all patches with the weights. Where the
    stride divides the kernel, blocks of stride × stride pixels become channels first: patches are
    then put together from few large pieces."""
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
class NatureCNN(eqx.Module):
    """Three convolutions and a linear layer (Mnih et al., 2015)."""

    convolutions: tuple[Conv, ...]
    linear: Linear

    def __init__(
        self,
        shape: tuple[int, int, int],
        key: Key,
        features: int = 512,
        initialization: str = "kaiming",
    ):
        if min(shape[:2]) < NATURE_SMALLEST:
            raise ConfigError(
                f"the encoder 'nature' needs pictures of {NATURE_SMALLEST}×{NATURE_SMALLEST} or "
                f"more, got {shape[0]}×{shape[1]}: use 'small'"
            )
        keys = jax.random.split(key, 4)
        plan = ((shape[2], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        self.convolutions = tuple(
            Conv(inputs, outputs, kernel, own, stride=stride, initialization=initialization)
            for (inputs, outputs, kernel, stride), own in zip(plan, keys[:3], strict=True)
        )
        sides = shape[:2]
        for _, _, kernel, stride in plan:
            sides = tuple((side - kernel) // stride + 1 for side in sides)
        flat = math.prod(sides) * plan[-1][1]
        self.linear = Linear(flat, features, keys[3], INITIALIZERS[initialization])

    def __call__(self, x: Float[Array, "*batch H W C"]) -> Float[Array, "*batch features"]:
        seen, batch = _rows(x)
        for convolution in self.convolutions:
            seen = jax.nn.relu(convolution(seen))
        return _features(self.linear, seen, batch)


@final
class SmallCNN(eqx.Module):
    """One convolution and a linear layer, for boards (Young and Tian, 2019: MinAtar)."""

    convolution: Conv
    linear: Linear

    def __init__(
        self,
        shape: tuple[int, int, int],
        key: Key,
        features: int = 128,
        initialization: str = "kaiming",
    ):
        if min(shape[:2]) < SMALL_SMALLEST:
            raise ConfigError(
                f"the encoder 'small' needs pictures of {SMALL_SMALLEST}×{SMALL_SMALLEST} or more, "
                f"got {shape[0]}×{shape[1]}: use 'impala', which takes any size"
            )
        convolution_key, linear_key = jax.random.split(key)
        self.convolution = Conv(shape[2], 16, 3, convolution_key, initialization=initialization)
        flat = (shape[0] - 2) * (shape[1] - 2) * 16
        self.linear = Linear(flat, features, linear_key, INITIALIZERS[initialization])

    def __call__(self, x: Float[Array, "*batch H W C"]) -> Float[Array, "*batch features"]:
        rows, batch = _rows(x)
        return _features(self.linear, jax.nn.relu(self.convolution(rows)), batch)


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
    """Half the height and width, and two residual blocks."""

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

    def __init__(
        self,
        shape: tuple[int, int, int],
        key: Key,
        features: int = 256,
        initialization: str = "kaiming",
    ):
        keys = jax.random.split(key, 4)
        widths = (shape[2], 16, 32, 32)
        self.sections = tuple(
            Section(widths[place], widths[place + 1], keys[place], initialization)
            for place in range(3)
        )
        flat = math.prod(-(-side // 8) for side in shape[:2]) * widths[-1]  # halved thrice
        self.linear = Linear(flat, features, keys[3], INITIALIZERS[initialization])

    def __call__(self, x: Float[Array, "*batch H W C"]) -> Float[Array, "*batch features"]:
        seen, batch = _rows(x)
        for section in self.sections:
            seen = section(seen)
        return _features(self.linear, jax.nn.relu(seen), batch)


ENCODERS: dict[str, type[NatureCNN] | type[ImpalaCNN] | type[SmallCNN]] = {
    "nature": NatureCNN,
    "impala": ImpalaCNN,
    "small": SmallCNN,
}


def fitting(shape: tuple[int, int, int]) -> str:
    """The name of the encoder for pictures [H, W, C] where none was asked for."""
    return "nature" if min(shape[:2]) >= NATURE_SMALLEST else "small"


def max_pool(x: Float[Array, "rows H W C"]) -> Float[Array, "rows h w C"]:
    """The largest of 3×3 at every second place."""
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def picture_axes(shape: tuple[int, ...], frames: int = 1) -> tuple[int, int]:
    """Which axes of one observation are its height and width; the others are channels.

    Channels come first where that axis is shorter than both others, and last otherwise.
    """
    stacked = int(frames > 1 or len(shape) == 4)
    one = shape[stacked:]
    if len(one) not in (2, 3):
        raise ConfigError(
            f"a picture has the shape [H, W], [H, W, C] or [C, H, W], or is a stack of these: "
            f"{list(shape)} is none"
        )
    channels_first = int(len(one) == 3 and one[0] < min(one[1:]))
    return stacked + channels_first, stacked + channels_first + 1


def image_shape(shape: tuple[int, ...], frames: int = 1) -> tuple[int, int, int]:
    """Height, width and channels as an encoder sees them."""
    height, width = picture_axes(shape, frames)
    channels = math.prod(shape) // (shape[height] * shape[width])
    return shape[height], shape[width], channels


def to_channels_last(
    image: Shaped[Array, "..."], shape: tuple[int, ...], frames: int = 1
) -> Float[Array, "*batch height width channels"]:
    """Pictures [*batch, *shape] as encoders see them; bytes come to be in [0, 1]."""
    batch = image.shape[: image.ndim - len(shape)]
    plane = picture_axes(shape, frames)
    others = [axis for axis in range(len(shape)) if axis not in plane]
    order = [*range(len(batch)), *(len(batch) + axis for axis in (*plane, *others))]
    turned = image.transpose(order).reshape(*batch, *image_shape(shape, frames))
    numbers = turned.astype(jnp.float32)
    return numbers / 255 if image.dtype == jnp.uint8 else numbers


def _rows(x: Float[Array, "*batch H W C"]) -> tuple[Array, tuple[int, ...]]:
    """All pictures on one axis, as convolutions want them, and the axes that they had."""
    batch = x.shape[:-3]
    return x.reshape(math.prod(batch), *x.shape[-3:]), batch


def _features(linear: Linear, seen: Float[Array, "rows h w c"], batch: tuple[int, ...]) -> Array:
    features = jax.nn.relu(linear(seen.reshape(seen.shape[0], math.prod(seen.shape[1:]))))
    return features.reshape(*batch, features.shape[-1])
