"""How gradients change a TrainState: optimizers, target networks, and parts that are delayed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int32

from understudy.algorithms.config import Config
from understudy.algorithms.train_state import TrainState
from understudy.ops.targets import polyak
from understudy.types import Scalar, Tree

Index = int | Int32[Array, ""]  # of an update; an int where a program is compiled for it
Flag = Bool[Array, ""] | bool  # plain where the index is, or where it is always the same


class UpdateMask(NamedTuple):
    """Which delayed parts take part in an update."""

    policy: Flag
    targets: Flag


class Gradients(NamedTuple):
    params: Any  # in the form of the params; zeros where a part is delayed
    mask: UpdateMask | None


@final
@dataclass(frozen=True)
class Delays:
    """Updates of the critics per update of the delayed parts."""

    policy: int = 1
    targets: int = 1

    @property
    def period(self) -> int:
        """After how many updates the pattern repeats."""
        return math.lcm(self.policy, self.targets)

    def mask(self, index: Index) -> UpdateMask:
        """The parts that take part in update number `index`.

        The index is not batched over seeds: a batched predicate would turn a conditional into
        computing both sides. Where the index is a plain int, so are the flags, and a program that
        is compiled for it holds no conditional at all."""
        return UpdateMask(_every(index, self.policy), _every(index, self.targets))


def _every(index: Index, interval: int) -> Flag:
    return True if interval == 1 else index % interval == 0


def when(flag: Flag, compute: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """`compute()` if the flag is set, else `otherwise()`: only the branch taken costs anything."""
    if isinstance(flag, bool):
        return compute() if flag else otherwise()
    return jax.lax.cond(flag, compute, otherwise)


@final
@dataclass(frozen=True)
class Optimizers:
    """One optimizer for each of the params that learn, with the settings of a config."""

    config: Any
    learning_rates: Mapping[str, str]  # of each of the params: the setting of its own step size
    clip_together: bool = False  # the gradients of all networks, or each one's by itself
    delayed: tuple[str, ...] = ()  # the params that move with the policy
    numbers: tuple[str, ...] = ()  # the params that are no networks: no clipping, no decay
    project: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # after each step

    @property
    def networks(self) -> tuple[str, ...]:
        """The params that are networks."""
        return tuple(name for name in self.learning_rates if name not in self.numbers)

    def init(self, params: Any) -> dict[str, Tree]:
        return {
            name: self._direction(name).init(getattr(params, name)) for name in self.learning_rates
        }

    def step(self, state: TrainState, gradients: Gradients) -> tuple[Any, dict[str, Tree]]:
        """The new params and optimizer states. Delayed parts keep theirs."""
        assert gradients.mask is not None
        clipped, params, opt_state = self._clip(gradients.params), {}, {}
        for name in self.learning_rates:
            params[name], opt_state[name] = when(
                gradients.mask.policy if name in self.delayed else True,
                partial(self._move, state, name, clipped[name]),
                partial(_keep, state, name),
            )
        return state.params._replace(**params), opt_state

    def _move(self, state: TrainState, name: str, gradient: Tree) -> tuple[Tree, Tree]:
        rate = state.hyper.get(self.learning_rates[name], state.hyper["learning_rate"])
        old, own = _keep(state, name)
        new, own = descend(self._direction(name), gradient, own, old, rate)
        return self.project[name](new) if name in self.project else new, own

    def _clip(self, gradients: Any) -> dict[str, Any]:
        given = {name: getattr(gradients, name) for name in self.learning_rates}
        if self.config.max_grad_norm is None:
            return given
        networks = {name: given[name] for name in self.networks}
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        if self.clip_together:
            together: Any = clip.update(networks, clip.init(networks))[0]
            return given | together
        return given | {name: clip.update(x, clip.init(x))[0] for name, x in networks.items()}

    def _direction(self, name: str) -> optax.GradientTransformation:
        return direction(self.config, decayed=name in self.networks)


def _keep(state: TrainState, name: str) -> tuple[Tree, Tree]:
    return getattr(state.params, name), state.opt_state[name]


def direction(config: Any, decayed: bool = True) -> optax.GradientTransformation:
    """From gradients to a direction. The step size comes from `state.hyper` when it is taken.

    In RMSprop ε stands inside the root, g/√(v + ε), or outside, g/(√v + ε): that decides how the
    first steps go, and with them whether A2C is stable."""
    epsilon = config.optimizer_epsilon
    if config.optimizer == "rmsprop":
        epsilon = 1e-5 if epsilon is None else epsilon
        return optax.scale_by_rms(
            config.rmsprop_decay, epsilon, eps_in_sqrt=config.epsilon_inside_root
        )
    epsilon = 1e-8 if epsilon is None else epsilon
    adam = optax.scale_by_adam(config.adam_beta1, config.adam_beta2, epsilon)
    if config.optimizer == "adamw" and decayed:
        decay = 0.01 if config.weight_decay is None else config.weight_decay
        return optax.chain(adam, optax.add_decayed_weights(decay))
    return adam


def descend(
    optimizer: optax.GradientTransformation,
    gradients: Tree,
    opt_state: Tree,
    params: Tree,
    step_size: Scalar,
) -> tuple[Tree, Tree]:
    """One step of an optimizer: the new params, and its new state."""
    towards, opt_state = optimizer.update(gradients, opt_state, params)
    return jax.tree.map(lambda p, d: p - step_size * d, params, towards), opt_state


def move_targets(state: TrainState, params: Any, flag: Flag) -> Any:
    """The targets, moved towards the new params by τ where that is not delayed."""
    if not state.targets:
        return state.targets
    followed = type(state.targets)(*(getattr(params, name) for name in state.targets._fields))
    return when(
        flag,
        lambda: polyak(state.targets, followed, state.hyper["tau"]),
        lambda: state.targets,
    )


def initial_hyper(config: Config) -> dict[str, Scalar]:
    """The moving hyper-parameters as arrays, for `state.hyper`."""
    return {name: jnp.float32(value) for name, value in config.moving().items()}


def hard_copy(tree: Tree) -> Tree:
    """The same values in buffers of their own: donated buffers must not be shared."""
    return jax.tree.map(jnp.copy, tree)
