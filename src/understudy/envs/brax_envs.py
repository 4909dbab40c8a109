"""Brax's environments as native ones. Brax itself is imported when one is made."""

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from understudy.envs.arguments import EnvArgs, cannot_be_made, check_fields
from understudy.envs.base import NativeEnv, NativeStep
from understudy.envs.descriptors import FEET, Descriptor, walker_descriptors
from understudy.envs.names import missing_package, unknown_name
from understudy.envs.rows import describe_error
from understudy.types import ArraySpec, ConfigError, Continuous, EnvironmentError, Key, Spec

BACKENDS = ("spring", "positional", "generalized", "mjx")

# The geoms with which the walkers touch the floor, and names of their feet. Brax calls the ant's
# after feet, MuJoCo's model after ankles.
_FEET = {
    kind.lower(): {geom.replace("ankle", "foot"): foot for geom, foot in feet.items()}
    for kind, feet in FEET.items()
}

# About the highest speed of a good walker, in metres per step. The ant's is the usual choice in the
# literature: 30 metres in 250 steps.
_REACH = {"halfcheetah": 0.4, "walker2d": 0.04, "hopper": 0.024, "ant": 0.12}


class BraxState(NamedTuple):
    """The part of Brax's state that the next step depends on; metrics are left out."""

    physics: Any
    info: dict[str, Any]
    steps: Int32[Array, ""]


@final
@dataclass(frozen=True)
class Brax(NativeEnv):
    """An environment of Brax, without Brax's own wrappers: Brax's "done" means termination, and the
    time limit is applied here."""

    name: str
    """Brax's own name: "halfcheetah", "ant" …"""
    backend: str = "spring"
    """The physics: one of "spring", "positional", "generalized" and "mjx"."""
    max_steps: int = 1000
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """For the constructor of Brax's environment: {"reset_noise_scale": 0.0} …"""
    contact_distance: float = 0.001
    """The distance from the floor, in metres, within which a foot counts as touching it. With 0, a
    foot at rest would not always touch: the physics moves it by fractions of a millimetre."""

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, got {self.max_steps}")
        _ = self.spec  # makes the environment: mistakes are reported here

    @cached_property
    def spec(self) -> Spec:
        env = self.brax_env
        with quiet_brax():
            seen = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
        if not hasattr(seen, "shape"):
            raise EnvironmentError(
                f'"brax:{self.name}" shows {", ".join(seen)}: only one array can be observed'
            )
        size = env.action_size
        # Brax maps them to the range of its actuators.
        action = Continuous((-1.0,) * size, (1.0,) * size, shape=(size,))
        return Spec(ArraySpec(seen.shape, str(seen.dtype)), action)

    def reset(self, key: Key) -> tuple[BraxState, Float[Array, "observation"]]:
        with quiet_brax():
            begun = self.brax_env.reset(key)
        state = BraxState(begun.pipeline_state, begun.info, jnp.zeros((), jnp.int32))
        return _strongly_typed((state, begun.obs))

    def step(self, state: BraxState, action: Float[Array, "action"], key: Key) -> NativeStep:
        nothing = jnp.zeros(())
        # Metrics are written to, never read: the compiler drops what is written.
        before = importlib.import_module("brax.envs").State(
            state.physics, obs=None, reward=nothing, done=nothing, metrics={}, info=dict(state.info)
        )
        with quiet_brax():
            after = self.brax_env.step(before, action)
        state = BraxState(after.pipeline_state, after.info, state.steps + 1)
        reward = jnp.asarray(after.reward, jnp.float32)
        terminated, truncated = jnp.asarray(after.done) != 0, state.steps >= self.max_steps
        return _strongly_typed(NativeStep(state, after.obs, reward, terminated, truncated))

    @property
    def descriptors(self) -> dict[str, Descriptor]:
        """Which feet touch the floor, and where the torso ends up."""
        if self.name not in _FEET:
            return {}
        feet, axes = _FEET[self.name], ("x", "y") if self.name == "ant" else ("x",)
        touching = _touching(self.brax_env.sys.mj_model, tuple(feet), self.contact_distance)
        reach = _REACH[self.name] * self.max_steps
        return walker_descriptors(feet.values(), touching, axes, _torso(len(axes)), reach)

    @cached_property
    def brax_env(self) -> Any:
        """Brax's own object, without its wrappers."""
        try:
            with quiet_brax():
                brax = importlib.import_module("brax.envs")
        except ImportError as error:
            raise missing_package(f"brax:{self.name}", "understudy[brax]") from error
        known = brax._envs  # Brax has no public list of them
        if self.name not in known:
            raise unknown_name("no Brax environment", self.name, sorted(known), "brax:")
        if self.backend not in BACKENDS:
            prefix = f"brax:{self.name}/"
            raise unknown_name("Brax has no backend", self.backend, BACKENDS, prefix)
        try:
            with quiet_brax():
                return brax.get_environment(self.name, backend=self.backend, **self.options)
        except Exception as error:
            what = f'"brax:{self.name}/{self.backend}"'
            if self.options:
                problem, creator = describe_error(error), known[self.name]
                raise cannot_be_made(what, self.options, problem, creator) from error
            raise EnvironmentError(f"{what} cannot be made: {describe_error(error)}") from error


brax = Brax


def make_brax(name: str, args: EnvArgs) -> Brax:
    """Make "halfcheetah" or "halfcheetah/mjx". Arguments that are no settings of `Brax` are for the
    constructor of Brax's environment."""
    named = ("max_steps", "contact_distance")
    own: dict[str, Any] = {key: value for key, value in args.items() if key in named}
    check_fields(f"brax:{name}", Brax, own)
    options = {key: value for key, value in args.items() if key not in own}
    kind, slash, backend = name.partition("/")
    own |= {"backend": backend} if slash else {}
    return Brax(kind, **own, options=options)


@contextlib.contextmanager
def quiet_brax() -> Iterator[None]:
    """Suppress the messages of Brax while it is imported, made or traced: that it and packages it
    calls are no longer maintained, that a package is missing (printed), that a model is written in
    an old way (by MuJoCo, which would also leave a file in the working directory)."""
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
    """Give all leaves strong types. The carry of a loop must not change its type from one step to
    the next, and a Python number somewhere in Brax would make a leaf weakly typed."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), tree)


def _touching(model: Any, geoms: tuple[str, ...], within: float) -> Callable[[Any, Any], Array]:
    """Return a function that tells which geoms touch the floor, at height 0 in all of the models.

    Brax can keep its contacts in the state, but then computes all of them a second time in every
    frame. A foot is a capsule or a sphere: one of its ends is its lowest point."""
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
