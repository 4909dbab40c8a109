"""MAP-Elites and PGA-MAP-Elites, whose generations are

    ask the emitters → evaluate all policies at once → add to the repertoire → tell the emitters

This page is all but the evaluation, which is on the device (`on_device`) or on the host
(`on_host`).
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from understudy.algorithms.td3 import TD3
from understudy.algorithms.td3.td3 import Policy
from understudy.buffers import Buffer, ReplayState
from understudy.envs.descriptors import Descriptor
from understudy.envs.seeds import EpisodeSeeds
from understudy.networks import DeterministicActor
from understudy.networks.build import make_actor
from understudy.qd.config import PGAMEConfig, QDConfig
from understudy.qd.emitters import CombinedEmitter, Emitter, IsoLine, PolicyGradient
from understudy.qd.repertoire import Repertoire, add, empty, policies_in
from understudy.qd.tessellation import Cells, make_cvt, make_grid
from understudy.training.episode_runner import EpisodePlan, EpisodeResults
from understudy.training.program_cache import shared
from understudy.training.replay_placement import choose
from understudy.training.setup import TrainingSetup
from understudy.types import Key, Scalar, Spec, Tree

ATTEMPTS = 3  # to run an episode that faults keep cutting

# The streams of the seed: no two purposes draw from the same one.
EMITTERS, POLICIES, EPISODES, REEVALUATION = range(4)


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

    def emitter(self) -> CombinedEmitter:
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
        return CombinedEmitter(parts)

    @property
    def setup(self) -> TrainingSetup:
        """As a trainer would see it: one learner, and an environment for each policy."""
        return TrainingSetup(self.td3, self.spec, self.seed, 1, self.config.generation_size)

    @property
    def episode_plan(self) -> EpisodePlan:
        """One episode of each policy of a generation."""
        size = self.config.generation_size
        return EpisodePlan(
            algorithm=self.td3,
            spec=self.spec,
            seeds=EpisodeSeeds(self.seed, size, fixed=self.config.starts == "fixed"),
            num_policies=size,
            descriptor=self.descriptor,
            episode_length=self.config.episode_length,
            attempts=ATTEMPTS,
        )

    @property
    def buffer(self) -> Buffer:
        """Replay with a lane for each policy of a generation."""
        return self.setup.buffer


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
    experience: ReplayState | None  # a lane for every policy of a generation
    key: Key  # the seed's, of which every purpose has a stream
    generation: Int32[Array, ""]
    offset: Scalar  # of the QD-score
    counts: Counts


@final
class Generations:
    """What happens before and after policies are evaluated, as pure functions."""

    def __init__(self, plan: Plan):
        self.plan, self.size = plan, plan.config.generation_size
        self._unseeded = replace(plan, seed=0)
        self.emitter = plan.emitter()
        self.learns = any(isinstance(part, PolicyGradient) for part in self.emitter.emitters)
        self._cells = plan.cells()
        if self.learns:
            choose(plan.setup, ("device",))  # refuses, or says, what is too large

    @property
    def shareable(self) -> bool:
        return self.plan.descriptor.shareable

    def __eq__(self, other: object) -> bool:
        """Whether the functions are the same. The seed is no part of any program."""
        return isinstance(other, Generations) and self._unseeded == other._unseeded

    def __hash__(self) -> int:
        return hash(self._unseeded)

    def begin(self) -> State:
        """Nothing in it yet."""
        return _begin_program(self)(jax.random.PRNGKey(self.plan.seed), self._cells)

    def nothing_yet(self, key: Key, cells: Cells) -> State:
        plan = self.plan
        policy = jax.eval_shape(self._policy, key)
        experience = plan.buffer.init() if self.learns else None
        zero = jnp.int32(0)
        return State(
            repertoire=empty(cells, policy),
            emitter=self.emitter.init(jax.random.fold_in(key, EMITTERS)),
            experience=experience,
            key=key,
            generation=zero,
            offset=jnp.float32(0.0),
            counts=Counts(zero, zero, zero, zero),
        )

    def _policy(self, key: Key) -> DeterministicActor:
        td3 = self.plan.td3
        return make_actor(DeterministicActor, self.plan.spec, td3.config, td3.networks, key)

    def first(self, state: State) -> Tree:
        """Policies as they are before anything is learned."""
        # The first generation's key, as `ask` has the later ones': the keys that `split` gives are
        # those of `fold_in` with small numbers.
        key = jax.random.fold_in(jax.random.fold_in(state.key, POLICIES), state.generation)
        return jax.vmap(self._policy)(jax.random.split(key, self.size))

    def ask(self, state: State) -> Tree:
        key = jax.random.fold_in(jax.random.fold_in(state.key, POLICIES), state.generation)
        return self.emitter.ask(state.emitter, state.repertoire, state.experience, key)

    def born(self, generation: Int32[Array, ""]) -> Int32[Array, " size"]:
        """The numbers of a generation's evaluations."""
        return generation * self.size + jnp.arange(self.size, dtype=jnp.int32)

    def start_keys(self, state: State, born: Int32[Array, " size"]) -> Key:
        """Where each evaluation's episode begins: it can be played again, by its number alone."""
        if self.plan.config.starts == "fixed":
            born = jnp.zeros_like(born)
        return jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(state.key, EPISODES)))(born)

    def take(self, state: State, policies: Tree, results: EpisodeResults, experience: Any) -> State:
        """Add what was evaluated, and let the emitters learn from it."""
        assert results.descriptors is not None
        born = self.born(state.generation)
        fitness = jnp.asarray(results.returns, jnp.float32)
        repertoire, added = add(state.repertoire, policies, fitness, results.descriptors, born)
        counts = (jnp.sum(results.lengths), *added)
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


class Reevaluation(NamedTuple):
    """Policies that were played once more."""

    fitness: np.ndarray  # [policies, episodes]
    descriptor: np.ndarray  # [policies, episodes, size]


class Illuminator(abc.ABC):
    """Grows a repertoire. Abstract; the final ones are for native and for host environments."""

    state: State
    generations: Generations

    @abc.abstractmethod
    def advance(self, generations: int) -> None:
        """So many generations more."""

    @abc.abstractmethod
    def replay(self, cells: np.ndarray) -> Reevaluation:
        """Play the policies of filled cells again, each as when it was found."""

    @abc.abstractmethod
    def reevaluate(self, cells: np.ndarray, episodes: int) -> Reevaluation:
        """Play the policies of filled cells in episodes that none of them has met."""

    def run_cells(
        self, cells: np.ndarray, run: Callable[[Tree, np.ndarray], list[EpisodeResults]]
    ) -> Reevaluation:
        """Run the policies of filled cells, as many at a time as a generation has: `run(policies,
        rows)` gives the results of each episode of those rows of `cells`."""
        size, count, parts = self.generations.size, len(cells), []
        for begin in range(0, count, size):
            rows = np.arange(begin, begin + size) % count
            results = run(policies_in(self.state.repertoire, cells[rows]), rows)
            parts.append([np.stack(one, axis=1) for one in zip(*results, strict=True)])
        fitness, _, descriptor = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
        return Reevaluation(fitness, descriptor)

    @abc.abstractmethod
    def close(self) -> None:
        """Release environments."""

    def settle(self) -> None:
        jax.block_until_ready(self.state)

    @property
    def faults(self) -> dict[str, int]:
        """What went wrong in environments and was survived, counted since the start."""
        return {}


@shared
def _begin_program(generations: Generations) -> Any:
    return jax.jit(generations.nothing_yet)
