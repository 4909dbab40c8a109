"""Small policies of every kind, as after some training, and what `agent.act` makes of them."""

import math
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from understudy.algorithms import find
from understudy.algorithms.ddqn.losses import mean_q
from understudy.algorithms.normalization import normalize_observation
from understudy.envs.spaces import to_real
from understudy.export.describe import describe
from understudy.networks import Networks
from understudy.networks.encoders import encode_step
from understudy.networks.normalizer import Statistics
from understudy.observation_packing import Packer
from understudy.types import ArraySpec, Continuous, Discrete, Joint, MultiDiscrete, Part, Spec

OBSERVATION = 3
LOPSIDED = Continuous((-1.0, 0.25), (7.0, 0.5), (2,))
UNIT = Continuous((-1.0,) * 2, (1.0,) * 2, (2,))
ROUGH = Continuous((-0.1, 1 / 3, -2.0, 5.0), (0.3, 2 / 3, -1.0, 5.0), (2, 2))  # not float32's own
UNBOUNDED = Continuous((-np.inf,) * 2, (np.inf,) * 2, (2,))
HALF_BOUNDED = Continuous((0.0, -np.inf), (np.inf, 0.5), (2,))
CHOICE, PAIR = Discrete(4, start=-2), MultiDiscrete((2, 5), (0, 3), (2,))
GRID = MultiDiscrete((2, 3, 2, 4), (0, 1, -1, 0), (2, 2))

VECTOR = ArraySpec((OBSERVATION,))
STACK, PLANES = ArraySpec((2, 36, 37), "uint8", frames=2), ArraySpec((6, 5, 4), "bool")
COLORS = ArraySpec((3, 9, 12), "uint8")  # channels first
NUMBERS = (Part("arm/place", (2, 2), "float32"), Part("mode", (3,), "float32", 3, start=-1))
SCALAR = Part("action", (), "float32")  # a name that ONNX needs for itself
DICT = ArraySpec((8,), "float32", (*NUMBERS, SCALAR))
CAMERAS = (Part("eye", (8, 7, 3), "uint8"), *NUMBERS, Part("map", (5, 6), "bool"), SCALAR)
SEEING = ArraySpec((8 * 7 * 3 + 4 * 4 + 4 * 3 + 5 * 6 + 4,), "uint8", CAMERAS)
ONE_OF_FOUR = ArraySpec((4,), "float32", (Part("", (4,), "float32", 4, start=2),))

KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "TD3": ("td3", LOPSIDED, {}),
    "TD3 normalized": ("td3", ROUGH, dict(normalize_observations=True, activation="gelu")),
    "TD3 in [-1, 1]": ("td3", UNIT, dict(hidden_sizes=(5, 7, 3), activation="tanh")),
    "DDPG": ("ddpg", LOPSIDED, dict(activation="elu", normalize_observations=True)),
    "DDPG, lingering noise": ("ddpg", UNIT, dict(noise="ornstein_uhlenbeck")),
    "SAC": ("sac", LOPSIDED, dict(activation="silu", normalize_observations=True)),
    "SAC, linear": ("sac", ROUGH, dict(hidden_sizes=())),
    "SAC, BatchNorm": ("sac", ROUGH, dict(normalization="batch", hidden_sizes=(6, 5))),
    "SAC, BatchNorm of inputs": ("sac", CHOICE, dict(normalization="batch", hidden_sizes=())),
    "TD3, BatchRenorm": ("td3", LOPSIDED, dict(normalization="batch_renorm", activation="silu")),
    "SAC discrete": ("sac", CHOICE, dict(normalize_observations=True)),
    "DDQN": ("ddqn", CHOICE, dict(layer_norm=True, initial_epsilon=0.4)),
    "DDQN dueling": ("ddqn", CHOICE, dict(dueling=True, hidden_sizes=(6, 5))),
    "DDQN, three critics": (
        "ddqn",
        CHOICE,
        dict(dueling=True, num_critics=3, layer_norm=True, normalize_observations=True),
    ),
    "DDQN of categorical returns": (
        "ddqn",
        CHOICE,
        dict(critic_head="categorical", num_atoms=5, num_critics=2, layer_norm=True),
    ),
    "DDQN dueling, of categorical returns": (
        "ddqn",
        CHOICE,
        dict(critic_head="categorical", num_atoms=7, min_return=-1.0, dueling=True),
    ),
    "DDQN dueling, of quantiles": (
        "ddqn",
        CHOICE,
        dict(critic_head="quantile", num_quantiles=3, dueling=True, normalize_observations=True),
    ),
    "DDQN joint, of quantiles": (
        "ddqn",
        Joint.over(GRID),
        dict(critic_head="quantile", num_quantiles=3),
    ),
    "A2C categorical": ("a2c", CHOICE, dict(share_encoder=True)),
    "A2C pair": ("a2c", PAIR, dict(normalize_observations=True)),
    "A2C grid": ("a2c", GRID, dict(activation="relu")),
    "A2C Gaussian": ("a2c", UNBOUNDED, dict(normalize_observations=True)),
    "A2C half bounded": ("a2c", HALF_BOUNDED, dict(activation="gelu")),
    "A2C gSDE": (
        "a2c",
        LOPSIDED,
        dict(state_dependent_exploration=True, normalize_observations=True),
    ),
    "MPO": ("mpo", LOPSIDED, dict(normalize_observations=True)),
    "MPO discrete": ("mpo", CHOICE, dict(activation="silu")),
    "PQN": ("pqn", CHOICE, dict(initial_epsilon=0.4)),
    "REPPO": ("reppo", LOPSIDED, dict(num_atoms=5)),
    "REPPO discrete": ("reppo", CHOICE, dict(num_atoms=5, normalize_observations=False)),
    "SAC, SimBa": (
        "sac",
        LOPSIDED,
        dict(network="simba", hidden_sizes=(4, 4), normalize_observations=True, activation="silu"),
    ),
    "SAC, FlashSAC": ("sac", ROUGH, dict(network="flashsac", hidden_sizes=(4, 4))),
    "TD3, FlashSAC": (
        "td3",
        LOPSIDED,
        dict(network="flashsac", hidden_sizes=(6,), activation="silu", normalize_observations=True),
    ),
    "TD3, SimBaV2": ("td3", ROUGH, dict(network="simbav2", hidden_sizes=(6, 6))),
    "DDQN joint": ("ddqn", Joint.over(GRID), dict(normalize_observations=True)),
}
SENSING: dict[str, tuple[Any, ...]] = {
    "SAC of one of four": ("sac", LOPSIDED, {}, ONE_OF_FOUR),
    "A2C of a dict": ("a2c", LOPSIDED, dict(normalize_observations=True), DICT),
    "DDQN with nature": (
        "ddqn",
        CHOICE,
        dict(num_critics=2, encoder_features=6, initialization="orthogonal"),
        STACK,
    ),
    "SAC with impala": ("sac", LOPSIDED, dict(encoder="impala", encoder_features=6), COLORS),
    "TD3 with planes": ("td3", LOPSIDED, dict(share_encoder=False), PLANES),
    "MPO of a dict with images": ("mpo", LOPSIDED, dict(encoder_features=5), SEEING),
    "SAC, GRU": ("sac", LOPSIDED, dict(memory="gru", memory_size=5, normalize_observations=True)),
    "DDQN, LSTM": ("ddqn", CHOICE, dict(memory="lstm", memory_size=6, dueling=True)),
    "A2C pair, LSTM": ("a2c", PAIR, dict(memory="lstm", memory_size=4)),
    "TD3 with planes, GRU": ("td3", LOPSIDED, dict(memory="gru", memory_size=7), PLANES),
    "MPO of a dict with images, LSTM": (
        "mpo",
        LOPSIDED,
        dict(memory="lstm", memory_size=4, encoder_features=5),
        SEEING,
    ),
}
EVERY = KINDS | SENSING
KEY = jax.random.PRNGKey(0)
SEEDS = {"A2C grid": 4, "SAC with impala": 5}  # of weights, 3 for the others: no policy acts alike
# everywhere, and none is saturated while it explores
REMEMBERING = [kind for kind, told in EVERY.items() if "memory" in told[2]]


@partial(jax.jit, static_argnums=(0, 6))
def _act(algorithm, policy, rows, first, memory, key, explore):
    """One program per policy and number of rows, for first steps and for later ones."""
    before = algorithm.memory(policy, len(rows))
    if memory is not None:
        before = before._replace(
            recurrent_state=jnp.where(first[:, None], before.recurrent_state, memory)
        )
    action, after, _ = algorithm.act(policy, before, rows, first, key, explore)
    return action, None if memory is None else after.recurrent_state


@partial(jax.jit, static_argnums=0)
def _scores(algorithm, policy, rows, memory):
    seen = normalize_observation(policy.normalizer, rows)
    if memory is not None:
        seen, _ = encode_step(policy[0], memory, seen, jnp.zeros(len(rows), bool))
    if hasattr(policy, "critic"):
        return (mean_q(policy.critic, seen),)
    logits = policy.actor(seen).logits
    return logits if isinstance(logits, tuple) else (logits,)


class Case(NamedTuple):
    algorithm: Any
    policy: Any
    spec: Spec

    @property
    def remembers(self) -> bool:
        return self.algorithm.config.memory is not None

    def act(self, observation, key=None, memory=None):
        """What `agent.act` answers; with a key, while exploring."""
        explore = key is not None
        key = KEY if key is None else key
        rows = Packer(self.spec.observation).pack(observation)[0]
        first = np.full(len(rows), memory is None)
        memory = self._memory(len(rows), memory)
        action, after = _act(self.algorithm, self.policy, rows, first, memory, key, explore)
        action = to_real(np.asarray(action), self.spec)
        return (action, np.asarray(after)) if self.remembers else action

    def _memory(self, rows, memory):
        """Zeros where there is none yet; None for a policy that does not remember."""
        if self.remembers and memory is None:
            return np.zeros((rows, self.algorithm.config.memory_width), np.float32)
        return memory

    def describe(self):
        return describe(self.algorithm, self.policy, self.spec, {"env": "Test-v0"})

    def scores(self, observation, memory=None):
        """What the choices of a discrete policy are worth to it: one [rows, n] per choice."""
        rows = Packer(self.spec.observation).pack(observation)[0]
        memory = self._memory(len(rows), memory)
        return [np.asarray(own) for own in _scores(self.algorithm, self.policy, rows, memory)]

    def observations(self, rows=None, seed=0):
        """As an environment gives them; fewer where they are large."""
        rows = rows or (1000 if self.spec.observation.dtype == "float32" else 60)
        return observations(rows, seed, self.spec.observation)


def make(name, action, settings, seen=VECTOR, networks=None, seed=3) -> Case:
    algorithm = find(name)
    config = algorithm.config_class(**{"hidden_sizes": (8,), **settings})
    built = algorithm(config, networks=networks or Networks())
    spec = Spec(seen, action)
    rng = np.random.default_rng([seed, len(settings)])

    shapes: dict[str, Any] = {}

    def initial(key):
        """All but the network, whose shapes suffice: XLA takes long to compile random weights."""
        policy = built.policy(built.init(spec, key))
        field = "critic" if hasattr(policy, "critic") else "actor"
        shapes[field] = eqx.filter_eval_shape(lambda: getattr(policy, field))
        return policy._replace(**{field: None})

    def trained(path, leaf):
        # Wide layers have small weights, or everything behind them would be saturated.
        size = 0.45 * min(1.0, (8 / math.prod(leaf.shape[:-1])) ** 0.5)
        if path[-1].name == "variance":  # of a BatchNorm
            return jnp.asarray(rng.uniform(0.04, 4.0, leaf.shape), leaf.dtype)
        center = 1.0 if path[-1].name == "scale" else 0.0  # of a LayerNorm or BatchNorm
        return jnp.asarray(center + size * rng.normal(size=leaf.shape), leaf.dtype)

    policy = eqx.filter_jit(initial)(KEY)
    [(field, network)] = shapes.items()
    policy = policy._replace(**{field: jax.tree_util.tree_map_with_path(trained, network)})
    if policy.normalizer is not None:
        mean, variance = rng.normal(size=seen.shape), rng.uniform(0.04, 9.0, seen.shape)
        rest = jnp.asarray(np.full(seen.shape, 1e-8, np.float32))
        policy = policy._replace(
            normalizer=Statistics(jnp.int32(99), jnp.float32(mean), jnp.float32(variance), rest)
        )
    return Case(built, policy, spec)


@cache
def case(kind) -> Case:
    return make(*EVERY[kind], seed=SEEDS.get(kind, 3))


def observations(rows=1000, seed=0, spec=VECTOR):
    """Ordinary ones, and every tenth far out, where normalizers clip and tanh saturates."""
    rng = np.random.default_rng(seed)
    if not spec.parts:
        return _entry(rng, rows, spec.shape, spec.dtype)
    given = {
        part.name: rng.integers(part.start, part.start + part.choices, rows)
        if part.choices
        else _entry(rng, rows, part.shape, part.dtype)
        for part in spec.parts
    }
    return given.get("", given)


def _entry(rng, rows, shape, dtype):
    if dtype == "float32":
        seen = rng.normal(size=(rows, *shape))
        seen[::10] *= 50.0
        return seen.astype(np.float32)
    # Lit up to some place: noise alone would look alike to a network.
    lit = np.arange(math.prod(shape)) < math.prod(shape) * rng.random((rows, 1))
    share = lit.reshape(rows, *shape) * rng.random((rows, *shape))
    return (share * 256).astype(np.uint8) if dtype == "uint8" else share > 0.3


def assert_agree(case, action, seen, memory=None):
    """Continuous: within 1e-5 of the bounds' width (of the action, where there are none and it is
    above 1). Discrete: the
    same choice, except where the two are worth the same to the policy within 1e-6 (of the
    largest worth, if that is above 1), which may happen in one row of a hundred."""
    expected = case.act(seen, memory=memory)
    if case.remembers:
        expected, after = expected
        action, ours = action
        np.testing.assert_allclose(ours, after, rtol=1e-4, atol=1e-5)
    rows = len(expected)
    assert len(np.unique(expected, axis=0)) > 1  # or any other would agree as well
    assert action.shape == expected.shape and action.dtype == expected.dtype
    bounds = getattr(case.spec.action, "of", case.spec.action)
    if isinstance(bounds, Continuous):
        low, high = np.array(bounds.low), np.array(bounds.high)
        size = np.maximum(1.0, np.abs(expected).reshape(rows, -1))
        width = np.where(np.isfinite(high - low) & (high > low), high - low, size)
        apart = np.abs(action - expected).reshape(rows, -1) / width
        assert apart.max() < 1e-5
        assert (action.reshape(rows, -1) >= low).all()
        assert (action.reshape(rows, -1) <= high).all()
        return
    starts = bounds.start if isinstance(bounds, Discrete) else np.array(bounds.starts)
    ours, theirs = ((x.reshape(rows, -1) - starts) for x in (action, expected))
    assert (ours != theirs).mean() < 0.01
    if case.spec.action is not bounds:  # a joint choice is one number
        ours, theirs = (np.ravel_multi_index(x.T, bounds.choices)[:, None] for x in (ours, theirs))
    for place, worth in enumerate(case.scores(seen, memory)):
        chosen = [np.take_along_axis(worth, x[:, place : place + 1], 1) for x in (ours, theirs)]
        assert (np.abs(chosen[0] - chosen[1]) <= 1e-6 * max(1.0, np.abs(worth).max())).all()
