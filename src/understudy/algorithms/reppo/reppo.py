"""REPPO: networks, exploration and the order of an update. The maths is in losses.py."""

import math
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from understudy.algorithms import off_policy
from understudy.algorithms.base import ActorPolicy, Algorithm, Explored, First, PerRow, Result
from understudy.algorithms.gradients import (
    Part,
    differentiate_critic,
    join_gradients,
    mean_over_steps,
)
from understudy.algorithms.joint_pass import encode_online
from understudy.algorithms.normalization import normalize_batch
from understudy.algorithms.optim import Optimizers, UpdateMask
from understudy.algorithms.reppo import losses
from understudy.algorithms.reppo.config import REPPOConfig
from understudy.algorithms.reppo.losses import Prepared
from understudy.algorithms.rollouts import only_valid, rows, weights
from understudy.algorithms.train_state import TrainState
from understudy.networks import CategoricalActor, SquashedGaussianActor
from understudy.networks.build import make_actor, make_critics
from understudy.ops.densities import row_normals, squashed_gaussian_log_prob
from understudy.ops.distributions import Categorical
from understudy.ops.return_distributions import Returns
from understudy.ops.targets import Target
from understudy.types import (
    Continuous,
    Discrete,
    Key,
    Observation,
    Scalar,
    Spec,
    Trajectory,
    Tree,
)

TARGETS = 2**30 + 1  # derives the key of the targets' actions: no split of the key gives the same


class Params(NamedTuple):
    actor: Any
    critic: Any  # [1, ...]
    duals: dict[str, Scalar]  # log α and log β: of the temperature, and of the bound's multiplier


@final
class REPPO(Algorithm):
    """Relative Entropy Pathwise Policy Optimization, for continuous and for discrete actions."""

    name = "reppo"
    config_class = REPPOConfig
    supported_actions = (Continuous, Discrete)
    num_envs = 128
    config: REPPOConfig
    q_values = off_policy.q_values

    @property
    def optimizers(self) -> Optimizers:
        return Optimizers(self.config, numbers={"duals": "dual_learning_rate"})

    def init_params(self, spec: Spec, key: Key) -> tuple[Params, Key]:
        actor_key, critic_key, key = jax.random.split(key, 3)
        config, networks = self.config, self.networks
        kind = CategoricalActor if isinstance(spec.action, Discrete) else SquashedGaussianActor
        actor = make_actor(kind, spec, config, networks, actor_key)
        form = config.return_form
        critic = make_critics(spec, config, networks, critic_key, distribution=form)
        duals = {"temperature": config.initial_temperature, "multiplier": config.initial_multiplier}
        logs = {name: jnp.log(jnp.float32(start)) for name, start in duals.items()}
        return Params(actor, critic, logs), key

    def init_hyper(self, spec: Spec) -> dict[str, Scalar]:
        """The target entropy is −½ for each dimension of an action, as in the paper; for a discrete
        action it is half the entropy of a uniform choice, as in SAC."""
        discrete, size = isinstance(spec.action, Discrete), spec.action.size
        default = 0.5 * math.log(size) if discrete else -0.5 * size
        return {"target_entropy": jnp.float32(default), **super().init_hyper(spec)}

    def explore(
        self, policy: ActorPolicy, noise: Tree, observation: Observation, first: First, key: Key
    ) -> Explored:
        chosen = losses.policy_of(policy.actor, observation)
        if isinstance(chosen, Categorical):
            return chosen.sample(key), noise, {}
        return jnp.tanh(chosen.sample(key)), noise, {}

    def prepare(self, state: TrainState, batch: Trajectory) -> Prepared:
        """Compute targets, which follow traces through time, and the policy that acted. Put all
        steps into rows, ordered by time."""
        steps = only_valid(normalize_batch(state.normalizer, batch))
        row = jnp.arange(steps.valid.size, dtype=jnp.int32)
        key = jax.random.fold_in(state.key, TARGETS)
        next_q, next_log_prob = self._evaluate(state, rows(steps.next_observation), key, row)
        target = losses.critic_target(
            steps,
            next_q.reshape(steps.valid.shape),
            next_log_prob.reshape(steps.valid.shape),
            jnp.exp(state.params.duals["temperature"]),
            state.hyper["gamma"] * state.hyper["q_lambda"],
        )
        action, target, weight = map(rows, (steps.action, target, weights(steps.valid)))
        observation = rows(steps.observation)
        old_policy = losses.policy_of(state.params.actor, observation)
        return Prepared(observation, action, target, old_policy, weight, row)

    def _evaluate(
        self, state: TrainState, observation: Observation, key: Key, row: Array
    ) -> tuple[PerRow, PerRow]:
        """Return Q and log π of an action of the present policy in each row, or their
        expectations."""
        policy = losses.policy_of(state.params.actor, observation)
        noise = self._noise(policy, key, row)
        return losses.evaluate(policy, state.params.critic, observation, noise)

    def _noise(self, policy: losses.Policy, key: Key, row: Array) -> Array | None:
        if isinstance(policy, Categorical):
            return None
        return row_normals(key, row, policy.mean.shape[-1])

    def gradients(self, state: TrainState, batch: Prepared, key: Key, mask: UpdateMask) -> Result:
        """Take all gradients at one state: the actor's at the current critic, before this update
        moves it."""
        noise_key, addon_key = jax.random.split(key)
        critic, duals, hyper = state.params.critic, state.params.duals, state.hyper
        values = {name: jnp.exp(log) for name, log in duals.items()}
        target: Target = batch.target
        if self.config.return_form is not None:
            target = Returns(batch.target[:, None], jnp.ones((len(batch.target), 1)))
        online = encode_online(critic, batch)
        critic_part = differentiate_critic(losses.critic_loss, online, target)

        def actor_loss(actor: Any, batch: Prepared) -> tuple[Scalar, tuple[PerRow, PerRow]]:
            policy = losses.policy_of(actor, batch.observation)
            noise = self._noise(policy, noise_key, batch.row)
            q, log_prob = losses.evaluate(policy, critic, batch.observation, noise)
            kl = losses.policy_kl(batch.old_policy, policy)
            loss = losses.actor_loss(q, log_prob, kl, batch.weight, values, hyper["kl_bound"])
            return loss, (log_prob, kl)

        def differentiate_duals(extras: tuple[PerRow, PerRow]) -> Part:
            log_prob, kl = extras
            loss, gradient = jax.value_and_grad(losses.dual_loss)(
                duals, log_prob, kl, batch.weight, hyper["target_entropy"], hyper["kl_bound"]
            )
            return gradient, {
                "dual_loss": loss,
                "entropy": -mean_over_steps(log_prob, batch.weight),
                "kl": mean_over_steps(kl, batch.weight),
                "kl_fraction": jnp.mean(batch.weight * (kl >= hyper["kl_bound"])),
            }

        gradients, aux = join_gradients(
            self, state, online, addon_key, mask, critic_part, actor_loss, differentiate_duals
        )
        numbers = {"ent_coef": values["temperature"], "multiplier": values["multiplier"]}
        return gradients, aux._replace(metrics=aux.metrics | numbers)

    def value(self, state: TrainState, observation: Array) -> PerRow:
        """Return E[Q(s, a)] under the policy: exact for discrete actions, otherwise of one sample
        that is the same until the next update."""
        row = jnp.arange(len(observation), dtype=jnp.int32)
        return self._evaluate(state, observation, state.key, row)[0]

    def log_prob(self, state: TrainState, observation: Array, action: Array) -> PerRow:
        policy = losses.policy_of(state.params.actor, observation)
        if isinstance(policy, Categorical):
            return policy.log_prob(action)
        return squashed_gaussian_log_prob(action, policy.mean, policy.log_std)
