"""Check whether an algorithm can learn on an environment, and adapt the spec to it."""

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
    """Raise, before anything starts, if the algorithm cannot learn on such an environment."""
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


def _check_observation(algorithm: Any, spec: ArraySpec) -> None:
    name, config = algorithm.name.upper(), algorithm.config
    vector = len(spec.shape) == 1 and spec.dtype == "float32"
    if not (vector or spec.is_image or spec.in_bytes):
        raise EnvironmentError(
            f"{name} supports vectors of floats, images of uint8 or bool and dicts of these, "
            f"got shape {spec.shape} of {spec.dtype}; "
            "gymnasium.wrappers.FlattenObservation makes one vector of it"
        )
    if config.normalize_observations and not vector:
        raise ConfigError(f"{name}: normalize_observations is for vectors, not for images")
    if getattr(config, "random_shift", 0) and not spec.is_image:
        raise ConfigError(f"{name}: random_shift is for images")
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    jax.eval_shape(
        lambda key: make_observation_encoder(spec, config, algorithm.networks.encoder, key)[0], key
    )


def adapt_spec(algorithm: Any, spec: Spec) -> Spec:
    """Return the spec for the algorithm: if it supports one discrete choice only, several choices
    become one choice among all combinations."""
    several, can = spec.action, algorithm.supported_actions
    # `check_spec` refuses actions that the algorithm cannot take in either form.
    if not isinstance(several, MultiDiscrete) or MultiDiscrete in can or Discrete not in can:
        return spec
    joint = Joint.over(several)
    if joint.n > MOST_JOINT_ACTIONS:
        raise EnvironmentError(
            f"{algorithm.name.upper()} makes one choice among all combinations, and {joint.n:,} "
            f"of them are too many (at most {MOST_JOINT_ACTIONS:,}); A2C chooses each by itself"
        )
    return Spec(spec.observation, joint)
