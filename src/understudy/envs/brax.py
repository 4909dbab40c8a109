"""Brax's environments as native ones. Brax itself is imported when one is made."""

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.descriptors import Descriptor
from understudy.envs.make import did_you_mean, missing_package
from understudy.types import ArraySpec, ConfigError, Continuous, EnvironmentError, Key, Spec

BACKENDS = ("spring", "positional", "generalized", "mjx")

# The geoms with which the walkers touch the floor, and what their feet are called.
_FEET = {
    "halfcheetah": {"bfoot": "back foot", "ffoot": "front foot"},
    "walker2d": {"foot_geom": "right foot", "foot_left_geom": "left foot"},
    "hopper": {"foot_geom": "foot"},
    "ant": {
        "left_foot_geom": "front left foot",
        "right_foot_geom": "front right foot",
        "third_foot_geom": "back left foot",
        "fourth_foot_geom": "back right foot",
    },
}

# About the fastest that a good walker goes, in metres a step. The Ant's is what others chose:
# 30 metres in 250 steps.
_REACH = {"halfcheetah": 0.4, "walker2d": 0.04, "hopper": 0.024, "ant": 0.12}


class BraxState(NamedTuple):
    """What of Brax's state the next step depends on: its metrics, for one, are left out."""

    physics: Any
    info: dict[str, Any]
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class Brax(NativeEnv):
    """An environment of Brax, without Brax's own wrappers: what Brax calls done is termination,
    and the time limit is kept here."""

    name: str
    """As Brax knows it: "halfcheetah", "ant" …"""
    backend: str = "spring"
    """The physics: one of "spring", "positional", "generalized" and "mjx"."""
    max_steps: int = 1000
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """For the constructor of Brax's environment: {"reset_noise_scale": 0.0} …"""
    contact_distance: float = 0.001
    """How near the floor, in metres, a foot touches it. At 0, one at rest does so most of the time
    only: the physics lets it tremble by fractions of a millimetre."""
    _env: Any = field(init=False, repr=False, compare=False)
    _spec: Spec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, got {self.max_steps}")
        object.__setattr__(self, "_env", self._make())
        object.__setattr__(self, "_spec", self._look())

    @classmethod
    def from_string(cls, text: str) -> "Brax":
        """Of "NAME" or "NAME/BACKEND"."""
        name, slash, backend = text.partition("/")
        return cls(name, backend) if slash else cls(name)

    @property
    def spec(self) -> Spec:
        return self._spec

    def reset(self, key: Key) -> tuple[BraxState, Float[Array, "observation"]]:
        with _quietly():
            begun = self._env.reset(key)
        state = BraxState(begun.pipeline_state, begun.info, jnp.zeros((), jnp.int32))
        return _strongly_typed((state, begun.obs))

    def step(self, state: BraxState, action: Float[Array, "action"], key: Key) -> NativeStep:
        nothing = jnp.zeros(())
        before = importlib.import_module("brax.envs").State(
            pipeline_state=state.physics,
            obs=None,
            reward=nothing,
            done=nothing,
            metrics={},  # written to, never read: the compiler drops what is written
            info=dict(state.info),
        )
        with _quietly():
            after = self._env.step(before, action)
        steps = state.steps + 1
        return _strongly_typed(
            NativeStep(
                state=BraxState(after.pipeline_state, after.info, steps),
                observation=after.obs,
                reward=jnp.asarray(after.reward, jnp.float32),
                terminated=jnp.asarray(after.done) != 0,
                truncated=steps >= self.max_steps,
            )
        )

    @property
    def descriptors(self) -> dict[str, Descriptor]:
        """Which feet touch the floor, and where the torso ends up."""
        if self.name not in _FEET:
            return {}
        feet = tuple(_FEET[self.name].values())
        geoms = tuple(_FEET[self.name])
        touching = _touching(self._env.sys.mj_model, geoms, self.contact_distance)
        axes = ("x", "y") if self.name == "ant" else ("x",)
        far = (_REACH[self.name] * self.max_steps,) * len(axes)
        near = tuple(-bound for bound in far)
        return {
            "feet": Descriptor(touching, (0.0,) * len(feet), (1.0,) * len(feet), names=feet),
            "position": Descriptor(_torso(len(axes)), near, far, over="last", names=axes),
        }

    def _make(self) -> Any:
        try:
            with _quietly():
                brax = importlib.import_module("brax.envs")
        except ImportError as error:
            raise missing_package(f"brax:{self.name}", "understudy[brax]") from error
        known = brax._envs  # Brax has no public list of them
        if self.name not in known:
            raise EnvironmentError(
                f'no Brax environment "{self.name}"{did_you_mean(self.name, known, "brax:")}; '
                f"there are: {', '.join(sorted(known))}"
            )
        if self.backend not in BACKENDS:
            near = did_you_mean(self.backend, BACKENDS, f"brax:{self.name}/")
            raise EnvironmentError(
                f'Brax has no backend "{self.backend}"{near}; there are: {", ".join(BACKENDS)}'
            )
        try:
            with _quietly():
                return brax.get_environment(self.name, backend=self.backend, **self.options)
        except Exception as error:
            raise EnvironmentError(
                f'"brax:{self.name}/{self.backend}" cannot be made: {type(error).__name__}: {error}'
            ) from error

    def _look(self) -> Spec:
        with _quietly():
            seen = jax.eval_shape(self._env.reset, jax.random.PRNGKey(0)).obs
        if not hasattr(seen, "shape"):
            raise EnvironmentError(
                f'"brax:{self.name}" shows {", ".join(seen)}: only one array can be observed'
            )
        size = self._env.action_size
        # Brax maps them to the range of its actuators.
        action = Continuous((-1.0,) * size, (1.0,) * size, shape=(size,))
        return Spec(ArraySpec(seen.shape, str(seen.dtype)), action)


brax = Brax


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what Brax brings about, imported, made or traced: that it and what it calls are no
    longer maintained, that a package is missing (printed), that a model is written in an old way
    (by MuJoCo, which would also leave a file in the working directory)."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mujoco = importlib.import_module("mujoco")
        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda _: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(before)


def _strongly_typed(tree: Any) -> Any:
    """A loop's carry must not change its type from one step to the next, and a Python number
    somewhere in Brax would make it one of weak type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), tree)


def _touching(model: Any, geoms: tuple[str, ...], within: float) -> Callable[[Any, Any], Array]:
    """Whether each of the geoms touches the floor, which is at height 0 in all of the models.

    Brax can keep its contacts in the state, and then looks for all of them a second time in every
    frame. A foot is a capsule or a sphere: one of its ends is what is lowest."""
    rotate = importlib.import_module("brax.math").rotate
    ids = np.array([model.geom(name).id for name in geoms])
    links = model.geom_bodyid[ids] - 1  # Brax does not count the world
    radius, half_length = model.geom_size[ids, :2].T.astype(np.float32)  # a sphere's is 0
    w, x, y, z = model.geom_quat[ids].T.astype(np.float32)
    along = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)])
    half = (half_length * along).T
    ends = model.geom_pos[ids].astype(np.float32) + np.stack([half, -half])  # [2, feet, 3]

    def touching(state: BraxState, observation: Array) -> Float[Array, "feet"]:
        x = state.physics.x
        turned = jax.vmap(jax.vmap(rotate), (0, None))(ends, x.rot[links])
        lowest = jnp.min(x.pos[links, 2] + turned[..., 2], axis=0) - radius
        return (lowest <= within).astype(jnp.float32)

    return touching


def _torso(axes: int) -> Callable[[Any, Any], Array]:
    def position(state: BraxState, observation: Array) -> Float[Array, "axes"]:
        return state.physics.x.pos[0, :axes]

    return position
