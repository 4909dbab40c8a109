"""The border of native environments: what they get of an action, and that it is what Gymnasium's
would get."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import understudy as us
from understudy.envs import spaces
from understudy.envs.base import NativeEnv, NativeStep
from understudy.training.actions import to_real
from understudy.types import ArraySpec, Continuous, Spec

SEEN = ArraySpec((2,))
PARTLY = Spec(SEEN, Continuous((-1.0, -np.inf), (np.inf, 2.0), (2,)))
on_device = jax.jit(to_real, static_argnums=1)


def test_finite_bounds_hold_beside_infinite_ones():
    action = np.array([[-3.0, -3.0], [0.5, 0.5], [3.0, 3.0]], np.float32)
    real = on_device(action, PARTLY)
    np.testing.assert_array_equal(real, [[-1.0, -3.0], [0.5, 0.5], [3.0, 2.0]])


@pytest.mark.parametrize(
    "action",
    [
        PARTLY.action,
        Continuous((-np.inf,) * 4, (np.inf,) * 4, (2, 2)),
        Continuous((0.25, -np.inf, -np.inf, -2.0), (np.inf, np.inf, -1.5, 4.0), (2, 2)),
        Continuous((-2.0, 0.5), (2.0, 3.5), (2,)),
    ],
)
def test_both_borders_agree(action):
    spec = Spec(SEEN, action)
    drawn = 3 * np.random.default_rng(0).normal(size=(16, action.size)).astype(np.float32)
    want = spaces.to_real(drawn, spec)
    np.testing.assert_allclose(on_device(drawn, spec), want, rtol=1e-6, atol=1e-6)


@final
class Listener(NativeEnv):
    """Writes down the actions it gets."""

    spec = property(lambda self: PARTLY)
    max_steps = property(lambda self: 10)

    def __init__(self) -> None:
        self.heard: list[np.ndarray] = []

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(2)

    def step(self, state: Any, action: Any, key: Any) -> NativeStep:
        jax.debug.callback(lambda real: self.heard.append(np.asarray(real)), action)
        after = state + 1
        return NativeStep(after, jnp.zeros(2), jnp.float32(0.0), jnp.bool_(False), after == 10)


@pytest.mark.agents
def test_a_native_environment_gets_no_action_outside_its_finite_bounds():
    """The policy's deviation is e² ≈ 7.4: most draws are beyond one of the bounds."""
    env = Listener()
    agent = us.A2C(env, us.A2CConfig(hidden_sizes=(4,), initial_log_std=2.0))
    agent.train(80, progress=False)
    jax.effects_barrier()
    agent.close()
    first, second = np.stack(env.heard).reshape(-1, 2)[:80].T
    assert first.min() == -1.0 and first.max() > 3.0
    assert second.max() == 2.0 and second.min() < -3.0
