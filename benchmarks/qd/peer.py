"""QDax's half of the comparison, run as its own PGA-ME notebook runs it.

Needs QDax 0.5 beside this library. Of Brax and scikit-learn, which QDax asks for, nothing is used
here: where they are missing, or too new for it, empty modules stand in.

    facts = run_qdax(env, descriptor, centroids, Settings(evaluations=10_000), seed=0)
"""

import importlib.machinery
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from settings import Settings

from understudy.envs.base import NativeEnv
from understudy.envs.descriptors import Descriptor
from understudy.training.actions import to_real


def stub_brax_v1() -> None:
    """Makes `qdax.core.emitters.pga_me_emitter` and QDax's scoring function importable.

    They want classes of Brax and scikit-learn to annotate with, or for what is never called here.
    The package of QDax's Brax 1 tasks is entered without running its `__init__`, which builds on
    simulators that are gone.
    """
    if _missing("brax"):
        _stub("brax")
        _stub("brax.envs", "Env", "State")
    _stub("brax.v1")
    _stub("brax.v1.envs", "Env")
    if _missing("sklearn"):
        _stub("sklearn")
        _stub("sklearn.cluster", "KMeans")

    import qdax.tasks.brax

    tasks = ModuleType("qdax.tasks.brax.v1")
    tasks.__path__ = [str(Path(qdax.tasks.brax.__path__[0]) / "v1")]
    sys.modules.setdefault(tasks.__name__, tasks)


def _missing(package: str) -> bool:
    return package not in sys.modules and importlib.util.find_spec(package) is None


def _stub(name: str, *classes: str) -> None:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    for each in classes:
        setattr(module, each, type(each, (), {}))
    sys.modules.setdefault(name, module)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, sys.modules[name])


class QDaxState(NamedTuple):
    """What QDax reads of an environment's state, and the native state it came from."""

    native: Any
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    info: dict[str, Any]


@dataclass(frozen=True)
class NativeForQDax:
    """A native environment as QDax's `create` would hand it over: with its time limit and back at
    the first state once an episode is done, so that every row of its fixed-length unroll is a
    transition of the environment.

    One thing differs: the descriptor of a last step is kept, not overwritten by that of the reset,
    because our descriptors are of the states after each step.
    """

    env: NativeEnv
    descriptor: Descriptor
    episode_length: int

    @property
    def observation_size(self) -> int:
        (size,) = self.env.spec.observation.shape
        return size

    @property
    def action_size(self) -> int:
        return self.env.spec.action.size

    @property
    def state_descriptor_length(self) -> int:
        return self.descriptor.size

    def reset(self, key: jax.Array) -> QDaxState:
        native, observation = self.env.reset(key)
        info = {
            "state_descriptor": self._describe(native, observation),
            "truncation": jnp.zeros(()),
            "steps": jnp.zeros((), jnp.int32),
            "key": key,
            "first": (native, observation),
        }
        return QDaxState(native, observation, jnp.zeros(()), jnp.zeros(()), info)

    def step(self, state: QDaxState, action: jax.Array) -> QDaxState:
        steps = state.info["steps"] + 1
        real = to_real(action[None], self.env.spec)[0]
        after = self.env.step(state.native, real, jax.random.fold_in(state.info["key"], steps))
        done = after.terminated | after.truncated | (steps >= self.episode_length)
        native, observation = jax.tree.map(
            partial(jnp.where, done), state.info["first"], (after.state, after.observation)
        )
        info = state.info | {
            "state_descriptor": self._describe(after.state, after.observation),
            "truncation": (done & ~after.terminated).astype(jnp.float32),
            "steps": jnp.where(done, 0, steps),
        }
        return QDaxState(native, observation, after.reward, done.astype(jnp.float32), info)

    def _describe(self, native: Any, observation: jax.Array) -> jax.Array:
        return jnp.asarray(self.descriptor.of(native, observation), jnp.float32)


def episode_descriptor(descriptor: Descriptor) -> Callable[[Any, jax.Array], jax.Array]:
    """Our descriptor in the form QDax's scoring function takes: of transitions [batch, steps] and
    a mask that is 1 after the first episode's end."""

    def last(data: Any, mask: jax.Array) -> jax.Array:
        place = jnp.sum(1.0 - mask, axis=1).astype(jnp.int32) - 1
        return jnp.take_along_axis(data.next_state_desc, place[:, None, None], axis=1)[:, 0]

    def mean(data: Any, mask: jax.Array) -> jax.Array:
        inside = 1.0 - mask[..., None]
        return jnp.sum(data.next_state_desc * inside, axis=1) / jnp.sum(inside, axis=1)

    return {"last": last, "mean": mean}[descriptor.over]


def run_qdax(
    env: NativeEnv, descriptor: Descriptor, centroids: np.ndarray, settings: Settings, seed: int
) -> dict[str, Any]:
    """Curves with a point for the initial population and one for each generation, seconds for
    each generation (compilation and the initial population apart), and the final repertoire."""
    stub_brax_v1()
    from qdax.core.neuroevolution.mdp_utils import init_population_controllers

    world = NativeForQDax(env, descriptor, settings.episode_length)
    policy = policy_network(world, settings)
    population_key, initial_key, key = jax.random.split(jax.random.key(seed), 3)
    population = init_population_controllers(policy, world, settings.batch_size, population_key)
    map_elites = _map_elites(world, policy, settings)

    repertoire, emitter_state, first = map_elites.init(
        population, jnp.asarray(centroids), initial_key
    )
    # A copy, because the blocks take over their arguments: some leaves are the same array twice.
    carry = jax.tree.map(jnp.copy, (repertoire, emitter_state, key))
    (repertoire, _, _), metrics, seconds, compile_seconds = _generations(
        map_elites, carry, settings
    )

    metrics = [jax.tree.map(lambda one: np.asarray(one)[None], first), *metrics]
    curves = {name: np.concatenate([block[name] for block in metrics]).tolist() for name in first}
    return {
        "evaluations": [settings.batch_size * (1 + g) for g in range(1 + settings.generations)],
        "qd_score": curves["qd_score"],
        "coverage": [percent / 100.0 for percent in curves["coverage"]],
        "max_fitness": curves["max_fitness"],
        "seconds": seconds,
        "compile_seconds": compile_seconds,
        "fitness": np.asarray(repertoire.fitnesses)[:, 0],  # -inf where a cell is empty
        "descriptor": np.asarray(repertoire.descriptors),
        "policies": repertoire.genotypes,
    }


def policy_network(world: NativeForQDax, settings: Settings) -> Any:
    """The notebook's: relu inside, tanh at the end."""
    from qdax.core.neuroevolution.networks.networks import MLP

    return MLP(
        layer_sizes=(*settings.policy_hidden, world.action_size),
        kernel_init=jax.nn.initializers.lecun_uniform(),
        final_activation=jnp.tanh,
    )


def scoring_function(world: NativeForQDax, policy: Any) -> Callable[..., Any]:
    """QDax's own, each policy in an episode of its own reset."""
    from qdax.tasks.brax.v1.env_creators import create_brax_scoring_fn

    return create_brax_scoring_fn(
        world,
        policy,
        episode_descriptor(world.descriptor),
        jax.random.key(0),  # unused without a common start
        episode_length=world.episode_length,
        deterministic=False,
    )


def _map_elites(world: NativeForQDax, policy: Any, settings: Settings) -> Any:
    from qdax.core.map_elites import MAPElites
    from qdax.utils.metrics import default_qd_metrics

    return MAPElites(
        scoring_function=scoring_function(world, policy),
        emitter=_emitter(world, policy, settings),
        metrics_function=partial(default_qd_metrics, qd_offset=-settings.offset),
    )


def _emitter(world: NativeForQDax, policy: Any, settings: Settings) -> Any:
    from qdax.core.emitters.mutation_operators import isoline_variation
    from qdax.core.emitters.pga_me_emitter import PGAMEConfig, PGAMEEmitter
    from qdax.core.emitters.standard_emitters import MixingEmitter

    variation = partial(
        isoline_variation, iso_sigma=settings.iso_sigma, line_sigma=settings.line_sigma
    )
    if settings.method == "map-elites":
        return MixingEmitter(
            mutation_fn=None,
            variation_fn=variation,
            variation_percentage=1.0,
            batch_size=settings.batch_size,
        )
    by_variation = settings.batch_size - settings.by_gradient
    config = PGAMEConfig(
        env_batch_size=settings.batch_size,
        # Half a policy more than asked for, because QDax rounds down.
        proportion_mutation_ga=(by_variation + 0.5) / settings.batch_size,
        num_critic_training_steps=settings.critic_steps,
        num_pg_training_steps=settings.policy_steps,
        replay_buffer_size=settings.replay_size,
        critic_hidden_layer_size=settings.critic_hidden,
        critic_learning_rate=settings.critic_learning_rate,
        greedy_learning_rate=settings.actor_learning_rate,
        policy_learning_rate=settings.policy_learning_rate,
        noise_clip=settings.target_noise_clip,
        policy_noise=settings.target_noise,
        discount=settings.discount,
        batch_size=settings.transitions,
        soft_tau_update=settings.tau,
        policy_delay=settings.delay,
    )
    return PGAMEEmitter(config=config, policy_network=policy, env=world, variation_fn=variation)


def _generations(
    map_elites: Any, carry: Any, settings: Settings
) -> tuple[Any, list[dict[str, Any]], list[float], float]:
    """Blocks of generations, each one call of a compiled scan: QDax's fastest way. Its notebook
    scans without donating the buffers; donated, they need not be copied for every block."""
    whole, rest = divmod(settings.generations, settings.log_every)
    lengths = [settings.log_every] * whole + [rest] * (rest > 0)

    began = time.perf_counter()
    blocks = {
        length: jax.jit(
            partial(jax.lax.scan, map_elites.scan_update, xs=(), length=length), donate_argnums=0
        )
        .lower(carry)
        .compile()
        for length in set(lengths)
    }
    compile_seconds = time.perf_counter() - began

    metrics, seconds = [], []
    for length in lengths:
        began = time.perf_counter()
        carry, block_metrics = jax.block_until_ready(blocks[length](carry))
        seconds += [(time.perf_counter() - began) / length] * length
        metrics.append(block_metrics)
    return carry, metrics, seconds, compile_seconds


def time_env_steps(env: NativeEnv, batch: int, steps: int, repeats: int = 5) -> float:
    """Seconds (median) that `steps` steps of `batch` environments take by themselves, with random
    actions drawn beforehand, from their resets on and beyond the ends of episodes."""
    key = jax.random.key(0)
    keys = jax.random.split(key, batch)
    size = env.spec.action.size
    drawn = jax.random.uniform(key, (steps, batch, size), minval=-1.0, maxval=1.0)
    actions = jax.vmap(lambda action: to_real(action, env.spec))(drawn)
    states, _ = jax.jit(jax.vmap(env.reset))(keys)

    @jax.jit
    def roll(states: Any, actions: jax.Array) -> tuple[Any, jax.Array]:
        def step(carry: tuple[Any, jax.Array], row: Any) -> tuple[tuple[Any, jax.Array], None]:
            states, total = carry
            action, t = row
            step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
            after = jax.vmap(env.step)(states, action, step_keys)
            # The sums keep every output needed.
            seen = after.observation.reshape(batch, -1).sum(axis=1)
            ends = after.terminated.astype(jnp.float32) + after.truncated
            return (after.state, total + after.reward + seen + ends), None

        return jax.lax.scan(step, (states, jnp.zeros(batch)), (actions, jnp.arange(steps)))[0]

    compiled = roll.lower(states, actions).compile()
    jax.block_until_ready(compiled(states, actions))
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(compiled(states, actions))
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))
