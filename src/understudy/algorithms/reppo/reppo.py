"""REPPO: networks, exploration and the order of an update. The maths is in losses.py."""

import math
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from understudy.algorithms import off_policy, rollouts
from understudy.algorithms.base import ActorPolicy, Algorithm, Explored, First, PerRow, Result
from understudy.algorithms.gradients import (
    Part,
    differentiate_critic,
    join_gradients,
    mean_over_steps,
)
from understudy.algorithms.joint_pass import Online
from understudy.algorithms.normalization import normalize_batch
from understudy.algorithms.optim import Optimizers, UpdateMask
from understudy.algorithms.reppo import losses
from understudy.algorithms.reppo.config import REPPOConfig
from understudy.algorithms.reppo.losses import Prepared
from understudy.algorithms.train_state import TrainState
from understudy.networks import CategoricalActor, SquashedGaussianActor
from understudy.networks.build import make_actor, make_critics
from understudy.networks.encoders import Features, encode_each
from understudy.networks.ensembles import shift_outputs
from understudy.ops.densities import row_normals, squashed_gaussian_log_prob
from understudy.ops.distributions import Categorical
from understudy.ops.return_distributions import Returns
from understudy.ops.targets import Target
from understudy.types import (
    Continuous,
    Discrete,
    History,
    Key,
    Observation,
    Scalar,
    Spec,
    Trajectory,
    Tree,
)

TARGETS = 2**30 + 1  # derives the key of the targets' actions: no split of the key gives the same
ZERO_LOGIT = 40.0  # of a return of 0 before the first update, as in the authors' code


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
        share = config.memory is not None
        actor = make_actor(kind, spec, config, networks, actor_key, share=share)
        form = config.return_form
        critic = make_critics(spec, config, networks, critic_key, distribution=form)
        if form is not None:  # start near a return of 0, wherever it lies in the range
            zero = form.project(Returns(jnp.zeros((1, 1)), jnp.ones((1, 1))))[0]
            choices = spec.action.size if isinstance(spec.action, Discrete) else 1
            critic = shift_outputs(critic, ZERO_LOGIT * jnp.tile(zero, choices))
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
        """Compute targets, which follow traces through time, and the policy that acted. The entries
        that minibatches are made of are steps or, with memory, environments."""
        steps = rollouts.only_valid(normalize_batch(state.normalizer, batch))
        (time, envs), recurrent = steps.valid.shape, steps.memory is not None
        observation, before, after = _observations(state, steps)

        def by_time(x: Array) -> Array:
            return x.reshape(envs, time).T if recurrent else x.reshape(time, envs)

        key = jax.random.fold_in(state.key, TARGETS)
        q, log_prob = self._evaluate(state, after, key, _numbered(time * envs))
        target = losses.critic_target(
            steps,
            by_time(q),
            by_time(log_prob),
            jnp.exp(state.params.duals["temperature"]),
            state.hyper["gamma"] * state.hyper["q_lambda"],
        )
        old_policy = losses.policy_of(self.policy(state).actor, before)
        columns = steps.action, target, rollouts.weights(steps.valid)
        if recurrent:
            action, target, weight = (jnp.swapaxes(x, 0, 1) for x in columns)
            old_policy = jax.tree.map(lambda x: x.reshape(envs, time, -1), old_policy)
        else:
            action, target, weight = map(rollouts.rows, columns)
        return Prepared(observation, action, target, old_policy, weight, _numbered(len(weight)))

    def _evaluate(
        self, state: TrainState, observation: Observation, key: Key, row: Array
    ) -> tuple[PerRow, PerRow]:
        """Return Q and log π of an action of the present policy in each row, or their
        expectations."""
        policy = losses.policy_of(self.policy(state).actor, observation)
        noise = self._noise(policy, key, row)
        return losses.evaluate(policy, state.params.critic, observation, noise)

    def _noise(self, policy: losses.Policy, key: Key, row: Array) -> Array | None:
        if isinstance(policy, Categorical):
            return None
        return row_normals(key, row, policy.mean.shape[-1])

    def gradients(self, state: TrainState, batch: Prepared, key: Key, mask: UpdateMask) -> Result:
        """Take all gradients at one state: the actor's at the current critic, before this update
        moves it."""
        batch = _by_row(batch)
        noise_key, addon_key = jax.random.split(key)
        critic, duals, hyper = state.params.critic, state.params.duals, state.hyper
        values = {name: jnp.exp(log) for name, log in duals.items()}
        target: Target = batch.target
        if self.config.return_form is not None:
            target = Returns(batch.target[:, None], jnp.ones((len(batch.target), 1)))
        online = Online(batch, critic, critic, lambda gradient: gradient)
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
        return self._evaluate(state, observation, state.key, _numbered(len(observation)))[0]

    def log_prob(self, state: TrainState, observation: Array, action: Array) -> PerRow:
        policy = losses.policy_of(self.policy(state).actor, observation)
        if isinstance(policy, Categorical):
            return policy.log_prob(action)
        return squashed_gaussian_log_prob(action, policy.mean, policy.log_std)


def _observations(
    state: TrainState, steps: Trajectory
) -> tuple[Observation, Observation, Observation]:
    """Return the observations to learn from, and those before and after each step as rows. With
    memory the rows are ordered by environment, and the last two are the critic's features."""
    if steps.memory is None:
        before, after = map(rollouts.rows, (steps.observation, steps.next_observation))
        return before, before, after
    before, after = rollouts.histories(steps)
    features = encode_each(state.params.critic.observation_encoder, before, after)
    return before, *map(Features, features)


def _by_row(batch: Prepared) -> Prepared:
    """Put the steps of whole environments into rows."""
    if not isinstance(batch.observation, History):
        return batch
    time = batch.weight.shape[1]
    row = batch.row[:, None] * time + _numbered(time)
    columns = jax.tree.map(rollouts.rows, (*batch[1:-1], row))
    return Prepared(batch.observation, *columns)


def _numbered(size: int) -> Int32[Array, " rows"]:
    return jnp.arange(size, dtype=jnp.int32)
