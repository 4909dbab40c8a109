"""PQN: the network, exploration and the order of an update. The maths is in losses.py."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from understudy.algorithms import off_policy
from understudy.algorithms.base import Algorithm, Aux, Explored, First, PerRow, Result
from understudy.algorithms.gradients import mean_over_steps
from understudy.algorithms.normalization import normalize_batch
from understudy.algorithms.optim import Gradients, Optimizers, UpdateMask
from understudy.algorithms.pqn import losses
from understudy.algorithms.pqn.config import PQNConfig
from understudy.algorithms.pqn.losses import Prepared
from understudy.algorithms.rollouts import (
    histories,
    only_valid,
    q_lambda_target,
    rows,
    weights,
)
from understudy.algorithms.train_state import TrainState
from understudy.networks.build import make_critics
from understudy.networks.normalizer import Statistics
from understudy.ops.exploration import epsilon_greedy
from understudy.types import Discrete, Key, Observation, Scalar, Spec, Trajectory, Tree


class Params(NamedTuple):
    critic: Any  # [1, ...]


class Policy(NamedTuple):
    critic: Any
    normalizer: Statistics | None  # of observations, if they are normalized
    epsilon: Scalar


@final
class PQN(Algorithm):
    """Parallelized Q-network for discrete actions, without replay and target networks."""

    name = "pqn"
    config_class = PQNConfig
    supported_actions = (Discrete,)
    num_envs = 128
    config: PQNConfig
    q_values = off_policy.q_values

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(self.config, networks={"critic": "learning_rate"})

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        critic_key, key = jax.random.split(key)
        critic = make_critics(spec, self.config, self.networks, critic_key, self.config.dueling)
        return Params(critic), key

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        return {**super().init_hyper(spec), "epsilon": jnp.float32(self.config.initial_epsilon)}

    def policy(self, state: TrainState) -> Policy:
        return Policy(state.params.critic, state.normalizer.observation, state.hyper["epsilon"])

    def explore(
        self, policy: Policy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        q = losses.q_values(policy.critic, observation)
        action = jnp.argmax(q, axis=-1)
        return epsilon_greedy(action, q.shape[-1], policy.epsilon, key), noise, {}

    def greedy_action(self, policy: Policy, observation: Observation) -> Int32[Array, " envs"]:
        return jnp.argmax(losses.q_values(policy.critic, observation), axis=-1)

    def prepare(self, state: TrainState, batch: Trajectory) -> Prepared:
        """Compute targets, which follow traces through time, and put all steps into rows: ordered
        by environment for a recurrent network, otherwise by time."""
        steps = only_valid(normalize_batch(state.normalizer, batch))
        recurrent = steps.memory is not None
        if recurrent:
            before, after = histories(steps)
        else:
            before, after = rows(steps.observation), rows(steps.next_observation)
        value = jnp.max(losses.q_values(state.params.critic, after), axis=-1)
        time, envs = steps.valid.shape
        value = value.reshape(envs, time).T if recurrent else value.reshape(time, envs)
        trace_decay = state.hyper["gamma"] * state.hyper["q_lambda"]
        target = q_lambda_target(steps, value, trace_decay)
        columns = (steps.action, target, weights(steps.valid))
        if recurrent:
            columns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), columns)
        row = jnp.arange(steps.valid.size, dtype=jnp.int32)
        action, target, weight = map(rows, columns)
        return Prepared(before, action, target, weight, row)

    def gradients(self, state: TrainState, batch: Prepared, key: Key, mask: UpdateMask) -> Result:
        """The targets are those of the network before the first update on this rollout."""
        differentiate = jax.value_and_grad(losses.critic_loss, has_aux=True)
        (loss, error), gradient = differentiate(state.params.critic, batch)
        metrics = {
            "critic_loss": loss,
            "q_mean": mean_over_steps(batch.target + error, batch.weight),
            "epsilon": state.hyper["epsilon"],
        }
        return Gradients(Params(gradient), mask), Aux(metrics, jnp.abs(error))

    def value(self, state: TrainState, observation: Array) -> PerRow:
        """Return the value of the best action."""
        return jnp.max(losses.q_values(state.params.critic, observation), axis=-1)
