"""The loops of MAP-Elites and PGA-MAP-Elites.

A generation is

    ask the emitters → evaluate all policies at once → add to the repertoire → tell the emitters

On native environments that is one program, and as many generations as are wanted run in it one
after the other. On Gymnasium environments the programs are *ask* and *take*, and between them the
environments step, each with a policy of its own, while the steps flow into replay.
"""

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from understudy.algorithms.td3 import TD3
from understudy.algorithms.td3.learner import Policy
from understudy.engine.feeding import add as add_step
from understudy.engine.keeping import choose
from understudy.engine.playing import HostStage, NativeStage, Played, Told
from understudy.engine.setting import Setting
from understudy.envs.base import HostEnvs, NativeEnv
from understudy.envs.describing import Descriptor
from understudy.experience import Ring, ring
from understudy.nets import DeterministicActor
from understudy.nets.build import make_actor
from understudy.qd.centroids import Cells, make_cvt, make_grid
from understudy.qd.config import PGAMEConfig, QDConfig
from understudy.qd.emitters import Emitter, IsoLine, PolicyGradient, Together
from understudy.qd.repertoire import Repertoire, add, empty, policies_in
from understudy.types import Key, Scalar, Spec, Transition, Tree

TRIES = 3  # of an evaluation that faults keep cutting
STEPS_AT_ONCE = 100  # that go from Gymnasium environments to replay

# The streams of the seed: no two purposes draw from the same one.
CELLS, EMITTERS, POLICIES, EPISODES = range(4)


@final
@dataclass(frozen=True)
class Plan:
    """What is illuminated, and how."""

    td3: TD3
    """The agent that every policy is; its critics guide the gradient."""
    spec: Spec
    descriptor: Descriptor
    config: QDConfig
    seed: int

    def cells(self) -> Cells:
        low, high = self.descriptor.low, self.descriptor.high
        if self.config.grid is not None:
            return make_grid(self.config.grid, low, high)
        return make_cvt(self.config.cells, low, high, self.seed)

    def emitter(self) -> Together:
        config = self.config
        parts: list[Emitter] = []
        guided = config.gradient_size if isinstance(config, PGAMEConfig) else 0
        free = config.generation_size - guided
        if free:
            parts.append(IsoLine(free, config.iso_sigma, config.line_sigma))
        if guided:
            assert isinstance(config, PGAMEConfig)
            lanes, rate = config.generation_size, config.policy_learning_rate
            steps = config.critic_steps, config.policy_steps
            parts.append(PolicyGradient(self.td3, self.spec, guided, lanes, *steps, rate))
        return Together(parts)

    @property
    def setting(self) -> Setting:
        """As the engine would see it: one learner, and an environment for each policy."""
        return Setting(self.td3, self.spec, self.seed, 1, self.config.generation_size)

    def key(self, stream: int) -> Key:
        return jax.random.fold_in(jax.random.PRNGKey(self.seed), stream)


class Counts(NamedTuple):
    """Since they were last looked at."""

    steps: Int32[Array, ""]  # of environments
    inserted: Int32[Array, ""]  # policies that took a cell
    not_finite: Int32[Array, ""]  # fitness or descriptor: not inserted
    clipped: Int32[Array, ""]  # descriptors out of bounds: taken for the nearest cell


class State(NamedTuple):
    """Everything that changes."""

    repertoire: Repertoire
    emitter: Any
    experience: Ring | None  # a lane for every policy of a generation
    key: Key
    generation: Int32[Array, ""]
    offset: Scalar  # of the QD-score
    counts: Counts


@final
class Generations:
    """What happens before and after policies are evaluated, as pure functions."""

    def __init__(self, plan: Plan):
        self.plan, self.size = plan, plan.config.generation_size
        self.emitter = plan.emitter()
        self.learns = any(isinstance(part, PolicyGradient) for part in self.emitter.emitters)
        self._cells = plan.cells()
        if self.learns:
            choose(plan.setting, ("device",))  # refuses, or says, what is too large

    def begin(self) -> State:
        """Nothing in it yet."""
        plan = self.plan
        policy = jax.eval_shape(self._policy, plan.key(POLICIES))
        experience = None
        if self.learns:
            experience = ring.create(plan.spec, plan.td3.config.buffer_size, self.size)
        zero = jnp.int32(0)
        return State(
            repertoire=empty(self._cells, policy),
            emitter=self.emitter.init(plan.key(EMITTERS)),
            experience=experience,
            key=plan.key(POLICIES),
            generation=zero,
            offset=jnp.float32(0.0),
            counts=Counts(zero, zero, zero, zero),
        )

    def _policy(self, key: Key) -> DeterministicActor:
        td3 = self.plan.td3
        return make_actor(DeterministicActor, self.plan.spec, td3.config, td3.networks, key)

    def first(self, state: State) -> Tree:
        """Policies as they are before anything is learned."""
        return jax.vmap(self._policy)(jax.random.split(state.key, self.size))

    def ask(self, state: State) -> Tree:
        key = jax.random.fold_in(state.key, state.generation)
        return self.emitter.ask(state.emitter, state.repertoire, state.experience, key)

    def born(self, generation: Int32[Array, ""]) -> Int32[Array, " size"]:
        """The numbers of a generation's evaluations."""
        return generation * self.size + jnp.arange(self.size, dtype=jnp.int32)

    def start_keys(self, born: Int32[Array, " size"]) -> Key:
        """Where each evaluation's episode begins: it can be played again, by its number alone."""
        if self.plan.config.starts == "fixed":
            born = jnp.zeros_like(born)
        return jax.vmap(partial(jax.random.fold_in, self.plan.key(EPISODES)))(born)

    def take(self, state: State, policies: Tree, played: Played, experience: Ring | None) -> State:
        """Add what was evaluated, and let the emitters learn from it."""
        assert played.descriptor is not None
        born = self.born(state.generation)
        fitness = jnp.asarray(played.total, jnp.float32)
        repertoire, added = add(state.repertoire, policies, fitness, played.descriptor, born)
        counts = (jnp.sum(played.steps), *added)
        return State(
            repertoire=repertoire,
            emitter=self.emitter.tell(state.emitter, experience),
            experience=experience,
            key=state.key,
            generation=state.generation + 1,
            offset=self._offset(state, fitness),
            counts=Counts(*(a + b for a, b in zip(state.counts, counts, strict=True))),
        )

    def _offset(self, state: State, fitness: Array) -> Scalar:
        """As it was set, or the lowest fitness of the first generation."""
        wanted = self.plan.config.score_offset
        if wanted is not None:
            return jnp.float32(wanted)
        known = jnp.isfinite(fitness)
        lowest = jnp.min(jnp.where(known, fitness, jnp.inf))
        lowest = jnp.where(jnp.any(known), lowest, 0.0)
        return jnp.where(state.generation == 0, lowest, state.offset)


def acting(policies: Tree) -> Policy:
    """Policies as TD3 plays them, without noise."""
    count = len(jax.tree.leaves(policies)[0])
    return Policy(policies, None, jnp.zeros(count))


class Illuminator(abc.ABC):
    """Grows a repertoire. Abstract; the final ones are for native and for host environments."""

    state: State
    generations: Generations

    @abc.abstractmethod
    def advance(self, generations: int) -> None:
        """So many generations more."""

    @abc.abstractmethod
    def replay(self, cells: np.ndarray) -> Played:
        """Play the policies of filled cells again, each as when it was found."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments."""

    def settle(self) -> None:
        jax.block_until_ready(self.state)

    @property
    def faults(self) -> dict[str, int]:
        """What went wrong in environments and was survived, counted since the start."""
        return {}


@final
class NativeIlluminator(Illuminator):
    """Generations that never leave the device."""

    def __init__(self, plan: Plan, env: NativeEnv):
        self.generations = Generations(plan)
        size, length = self.generations.size, plan.config.episode_length
        self._stage = NativeStage(plan.td3, env, plan.spec, size, 1, plan.descriptor, length)
        self.state = jax.jit(self.generations.begin)()
        self._begin = jax.jit(self._first, donate_argnums=0)
        self._go_on = jax.jit(self._several, donate_argnums=0)
        self._again = jax.jit(self._play)

    def advance(self, generations: int) -> None:
        if generations and not int(self.state.generation):
            self.state, generations = self._begin(self.state), generations - 1
        if generations:
            self.state = self._go_on(self.state, jnp.int32(generations))

    def _first(self, state: State) -> State:
        return self._evaluated(state, self.generations.first(state))

    def _several(self, state: State, count: Int32[Array, ""]) -> State:
        # The number is no part of the program: however generations are divided among calls,
        # they compute the same.
        def one(_: Array, state: State) -> State:
            return self._evaluated(state, self.generations.ask(state))

        return jax.lax.fori_loop(0, count, one, state)

    def _evaluated(self, state: State, policies: Tree) -> State:
        born = self.generations.born(state.generation)
        played, experience = self._play(policies, born, state.experience)
        return self.generations.take(state, policies, played, experience)

    def _play(
        self, policies: Tree, born: Array, experience: Ring | None = None
    ) -> tuple[Played, Any]:
        keys = self.generations.start_keys(born)
        return self._stage.play(acting(policies), keys, experience)

    def replay(self, cells: np.ndarray) -> Played:
        size, repertoire = self.generations.size, self.state.repertoire
        parts = []
        for begin in range(0, len(cells), size):
            some = cells[begin : begin + size]
            rows = np.resize(some, size)  # the program is one for whole generations
            played, _ = self._again(policies_in(repertoire, rows), repertoire.born[rows])
            count = len(some)
            parts.append(jax.tree.map(lambda x, count=count: np.asarray(x)[:count], played))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def close(self) -> None:
        """Nothing is held outside the device's memory."""


@final
class HostIlluminator(Illuminator):
    """Gymnasium environments, one for each policy of a generation."""

    def __init__(self, plan: Plan, envs: HostEnvs):
        self.generations = Generations(plan)
        self._envs, size = envs, self.generations.size
        length = plan.config.episode_length
        self._stage = HostStage(plan.td3, envs, size, 1, plan.descriptor, length)
        self.state = jax.jit(self.generations.begin)()
        self._first = jax.jit(self.generations.first)
        self._ask = jax.jit(self.generations.ask)
        self._take = jax.jit(self.generations.take, donate_argnums=(0, 3))
        self._add = jax.jit(_add_all, donate_argnums=0)

    def advance(self, generations: int) -> None:
        for _ in range(generations):
            state = self.state
            generation = int(state.generation)
            policies = self._ask(state) if generation else self._first(state)
            reel = _Reel(self._add, state.experience)
            # The reel has taken replay over, and gives it back with the new steps in it.
            state = state._replace(experience=None)
            played = self._play(policies, generation, reel)
            self.state = self._take(state, policies, played, reel.finish())

    def _play(self, policies: Tree, generation: int, reel: "_Reel | None" = None) -> Played:
        size = self.generations.size
        nothing = [self._no_actions()] * size
        observation = self._envs.replay(np.full(size, generation), nothing)
        tell = None if reel is None else reel.tell
        played = self._stage.play(acting(policies), observation, tell, TRIES, only=True)
        assert played.descriptor is not None
        total = np.asarray(played.total, np.float32)
        return Played(total, played.steps, np.asarray(played.descriptor, np.float32))

    def _no_actions(self) -> np.ndarray:
        stored = self.generations.plan.spec.action.stored
        return np.zeros((0, *stored.shape), stored.dtype)

    def replay(self, cells: np.ndarray) -> Played:
        size, repertoire = self.generations.size, self.state.repertoire
        parts = []
        for cell, born in zip(cells, np.asarray(repertoire.born)[cells], strict=True):
            generation, row = divmod(int(born), size)
            played = self._play(policies_in(repertoire, np.full(size, cell)), generation)
            parts.append(jax.tree.map(lambda x, row=row: x[row], played))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)

    @property
    def faults(self) -> dict[str, int]:
        return self._envs.faults

    def close(self) -> None:
        self._envs.close()


@final
class _Reel:
    """Carries steps from the host to replay, some at a time, while the environments go on."""

    def __init__(self, add: Any, experience: Ring | None):
        self._add, self._experience = add, experience
        self._told: list[Told] = []

    def tell(self, told: Told) -> None:
        if self._experience is not None:
            self._told.append(told)
            if len(self._told) == STEPS_AT_ONCE:
                self._hand_over()

    def finish(self) -> Ring | None:
        """Replay with all steps in it."""
        if self._told:
            idle = self._told[-1]._replace(valid=np.zeros_like(self._told[-1].valid))
            # Nothing happens in these: the program is one for a fixed number of steps.
            still = idle.step._replace(last=np.zeros_like(idle.step.last))
            self._told += [Told(still, idle.valid)] * (STEPS_AT_ONCE - len(self._told))
            self._hand_over()
        return self._experience

    def _hand_over(self) -> None:
        steps, valid = jax.tree.map(lambda *rows: np.stack(rows), *self._told)
        self._experience = self._add(self._experience, steps, valid)
        self._told = []


def _add_all(experience: Ring, steps: Transition, valid: Bool[Array, "time lanes"]) -> Ring:
    def one(experience: Ring, now: tuple[Transition, Array]) -> tuple[Any, None]:
        return add_step(experience, *now), None

    return jax.lax.scan(one, experience, (steps, valid))[0]
