"""MAP-Elites and PGA-MAP-Elites. A generation is

    ask the emitters → evaluate all policies at once → add to the repertoire → tell the emitters

This module holds everything except the evaluation, which runs on the device or on the host
(`illuminators`).
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from understudy.algorithms.td3 import TD3
from understudy.algorithms.td3.td3 import Policy
from understudy.buffers import Buffer, ReplayState
from understudy.envs.descriptors import Descriptor
from understudy.envs.seeds import EpisodeSeeds
from understudy.networks import DeterministicActor
from understudy.networks.build import make_actor
from understudy.qd.config import PGAMEConfig, QDConfig
from understudy.qd.emitters import CombinedEmitter, IsoLine, PolicyGradient
from understudy.qd.repertoire import Counts, Repertoire, add, empty
from understudy.qd.tessellation import Cells, make_cvt, make_grid
from understudy.training.episode_runner import EpisodePlan, EpisodeResults
from understudy.training.program_cache import shared
from understudy.training.replay_placement import choose
from understudy.training.setup import TrainingSetup
from understudy.types import Key, Scalar, Spec, Tree

ATTEMPTS = 3  # to run an episode that faults keep cutting

# The streams of the seed: each purpose draws from a stream of its own.
EMITTERS, POLICIES, EPISODES, REEVALUATION = range(4)


class State(NamedTuple):
    """Everything that changes."""

    repertoire: Repertoire
    emitter: Any
    experience: ReplayState | None  # a lane for every policy of a generation
    key: Key  # the seed's, from which each purpose derives its stream
    generation: Int32[Array, ""]
    offset: Scalar  # of the QD-score
    counts: Counts  # since they were last read


@final
@dataclass(frozen=True)
class Plan:
    """The settings of an illumination, and the steps of a generation as pure functions."""

    td3: TD3
    """The algorithm whose agents the policies are; its critics guide the gradient."""
    spec: Spec
    descriptor: Descriptor
    config: QDConfig
    seed: int

    @property
    def shareable(self) -> bool:
        return self.descriptor.shareable

    @cached_property
    def unseeded(self) -> "Plan":
        """The same plan with seed 0: programs do not depend on the seed."""
        return replace(self, seed=0)

    @property
    def size(self) -> int:
        """The number of policies in a generation."""
        return self.config.generation_size

    @property
    def setup(self) -> TrainingSetup:
        """The setup of a trainer with one learner, and an environment for each policy."""
        return TrainingSetup(self.td3, self.spec, self.seed, 1, self.size)

    @property
    def episode_plan(self) -> EpisodePlan:
        """One episode of each policy of a generation."""
        return EpisodePlan(
            algorithm=self.td3,
            spec=self.spec,
            seeds=EpisodeSeeds(self.seed, self.size, fixed=self.config.starts == "fixed"),
            num_policies=self.size,
            descriptor=self.descriptor,
            episode_length=self.config.episode_length,
            attempts=ATTEMPTS,
        )

    @property
    def buffer(self) -> Buffer:
        """Replay with a lane for each policy of a generation."""
        return self.setup.buffer

    def cells(self) -> Cells:
        low, high = self.descriptor.low, self.descriptor.high
        if self.config.grid is not None:
            return make_grid(self.config.grid, low, high)
        return make_cvt(self.config.cells, low, high, self.seed)

    @cached_property
    def emitter(self) -> CombinedEmitter:
        config, guided = self.config, []
        if isinstance(config, PGAMEConfig):
            guided.append(PolicyGradient(self.td3, self.spec, config))
        others = self.size - sum(part.size for part in guided)
        return CombinedEmitter([IsoLine(others, config.iso_sigma, config.line_sigma), *guided])

    @property
    def learns(self) -> bool:
        """Whether an emitter learns from the experience of the evaluations."""
        return any(isinstance(part, PolicyGradient) for part in self.emitter.emitters)

    def begin(self) -> State:
        """Return the state before the first generation."""
        if self.learns:
            choose(self.setup, ("device",))  # reports replay that is large, refuses too large
        return _begin_program(self.unseeded)(jax.random.PRNGKey(self.seed), self.cells())

    def empty_state(self, key: Key, cells: Cells) -> State:
        zero = jnp.int32(0)
        return State(
            repertoire=empty(cells, jax.eval_shape(self._make_policy, key)),
            emitter=self.emitter.init(jax.random.fold_in(key, EMITTERS)),
            experience=self.buffer.init() if self.learns else None,
            key=key,
            generation=zero,
            offset=jnp.float32(0.0),
            counts=Counts(zero, zero, zero, zero),
        )

    def _make_policy(self, key: Key) -> DeterministicActor:
        td3 = self.td3
        return make_actor(DeterministicActor, self.spec, td3.config, td3.networks, key)

    def first_policies(self, state: State) -> Tree:
        """Return the policies of the first generation, as initialized."""
        return jax.vmap(self._make_policy)(jax.random.split(_policies_key(state), self.size))

    def ask(self, state: State) -> Tree:
        """Return the policies of a later generation."""
        key = _policies_key(state)
        return self.emitter.ask(state.emitter, state.repertoire, state.experience, key)

    def born(self, generation: Int32[Array, ""]) -> Int32[Array, " size"]:
        """Return the numbers of a generation's evaluations, counted from the first generation."""
        return generation * self.size + jnp.arange(self.size, dtype=jnp.int32)

    def start_keys(self, state: State, born: Int32[Array, " size"]) -> Key:
        """Return the key of each evaluation's episode. It follows from the number of the
        evaluation, so that the episode can be played again."""
        if self.config.starts == "fixed":
            born = jnp.zeros_like(born)
        return jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(state.key, EPISODES)))(born)

    def tell(self, state: State, policies: Tree, results: EpisodeResults, experience: Any) -> State:
        """Add evaluated policies to the repertoire, and let the emitters learn."""
        assert results.descriptors is not None
        born = self.born(state.generation)
        fitness = jnp.asarray(results.returns, jnp.float32)
        repertoire, added = add(state.repertoire, policies, fitness, results.descriptors, born)
        added = added._replace(steps=jnp.sum(results.lengths))
        return state._replace(
            repertoire=repertoire,
            emitter=self.emitter.tell(state.emitter, experience),
            experience=experience,
            generation=state.generation + 1,
            offset=self._offset(state, fitness),
            counts=jax.tree.map(jnp.add, state.counts, added),
        )

    def _offset(self, state: State, fitness: Array) -> Scalar:
        """The configured offset, or the lowest fitness of the first generation."""
        if self.config.score_offset is not None:
            return jnp.float32(self.config.score_offset)
        known = jnp.isfinite(fitness)
        lowest = jnp.min(jnp.where(known, fitness, jnp.inf))
        lowest = jnp.where(jnp.any(known), lowest, 0.0)
        return jnp.where(state.generation == 0, lowest, state.offset)


def _policies_key(state: State) -> Key:
    """The key of a generation's policies. (`fold_in` with small numbers and `split` give the same
    keys: the first generation and the later ones use one stream.)"""
    return jax.random.fold_in(jax.random.fold_in(state.key, POLICIES), state.generation)


def as_td3(policies: Tree) -> Policy:
    """Return policies as TD3 plays them, without noise."""
    count = len(jax.tree.leaves(policies)[0])
    return Policy(policies, None, jnp.zeros(count))


@shared
def _begin_program(plan: Plan) -> Any:
    return jax.jit(plan.empty_state)
