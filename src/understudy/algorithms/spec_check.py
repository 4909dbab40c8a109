"""Whether an algorithm can learn on an environment, and as what it sees the environment."""

from typing import Any

import jax
import jax.numpy as jnp

from understudy.networks.encoders import make_observation_encoder
from understudy.types import (
    ArraySpec,
    ConfigError,
    Continuous,
    Discrete,
    EnvironmentError,
    Joint,
    MultiDiscrete,
    Spec,
)

MOST_JOINT_ACTIONS = 1_024


def check_spec(algorithm: Any, spec: Spec) -> None:
    """Refuse, before anything starts, a spec that the algorithm cannot learn."""
    name, needs_bounds = algorithm.name.upper(), algorithm.needs_bounds
    names = {
        Continuous: "continuous (a bounded Box)" if needs_bounds else "continuous (a Box)",
        Discrete: "Discrete",
        MultiDiscrete: "MultiDiscrete",
    }
    if not isinstance(spec.action, algorithm.supported_actions):
        can = " or ".join(names[kind] for kind in algorithm.supported_actions)
        raise EnvironmentError(
            f"{name} needs {can} actions, "
            f"but this environment's are {names[type(spec.action)].split(' ')[0]}"
        )
    if needs_bounds and isinstance(spec.action, Continuous) and not spec.action.bounded:
        raise EnvironmentError(
            f"{name} needs a bounded action Box (finite low and high), got "
            f"low={list(spec.action.low)}, high={list(spec.action.high)}; "
            "wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction"
        )
    _check_observation(algorithm, spec.observation)


def _check_observation(algorithm: Any, seen: ArraySpec) -> None:
    name, config = algorithm.name.upper(), algorithm.config
    vector = len(seen.shape) == 1 and seen.dtype == "float32"
    if not (vector or seen.is_image or seen.in_bytes):
        raise EnvironmentError(
            f"{name} supports vectors of floats, images of uint8 or bool and dicts of these, "
            f"got shape {seen.shape} of {seen.dtype}; "
            "gymnasium.wrappers.FlattenObservation makes one vector of it"
        )
    if config.normalize_observations and not vector:
        raise ConfigError(f"{name}: normalize_observations is for vectors, not for images")
    if getattr(config, "random_shift", 0) and not seen.is_image:
        raise ConfigError(f"{name}: random_shift is for images")
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    jax.eval_shape(
        lambda key: make_observation_encoder(seen, config, algorithm.networks.encoder, key)[0], key
    )


def adapt_spec(algorithm: Any, spec: Spec) -> Spec:
    """The spec as the algorithm sees it: several choices at once become one, where it can make
    only one."""
    several, can = spec.action, algorithm.supported_actions
    # What only a continuous action would fit stays as it is, for `check_spec` to refuse.
    if not isinstance(several, MultiDiscrete) or MultiDiscrete in can or Discrete not in can:
        return spec
    joint = Joint.over(several)
    if joint.n > MOST_JOINT_ACTIONS:
        raise EnvironmentError(
            f"{algorithm.name.upper()} makes one choice among all combinations, and {joint.n:,} "
            f"of them are too many (at most {MOST_JOINT_ACTIONS:,}); A2C chooses each by itself"
        )
    return Spec(spec.observation, joint)
