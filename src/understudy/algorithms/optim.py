"""How gradients change a TrainState: optimizers, target networks, and delayed parts."""

import itertools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

import jax
import optax
from jaxtyping import Array, Bool, Int32

from understudy.algorithms.train_state import TrainState
from understudy.networks.batch_norm import move_statistics, without_statistics
from understudy.networks.projection import project_weights
from understudy.ops.targets import polyak
from understudy.types import Scalar, Tree

Index = int | Int32[Array, ""]  # of an update; an int if a program is compiled for it
Flag = Bool[Array, ""] | bool  # a bool if the index is an int, or if it never changes


class UpdateMask(NamedTuple):
    """Which delayed parts take part in an update."""

    policy: Flag
    targets: Flag
    reset: Flag = False  # networks start again after the update


class Gradients(NamedTuple):
    params: Any  # in the form of the params; zeros where a part is delayed
    mask: Any  # the UpdateMask that they were computed for; None between processes


@final
@dataclass(frozen=True)
class Delays:
    """Updates of the critics per update of the delayed parts."""

    policy: int = 1
    targets: int = 1
    reset_every: int | None = None  # updates between two resets of all networks
    reset_at: tuple[int, ...] = ()  # numbers of updates after which there is one, too

    @property
    def period(self) -> int:
        """After how many updates the pattern repeats."""
        if self.reset_at:
            return sys.maxsize  # never
        return math.lcm(self.policy, self.targets, self.reset_every or 1)

    def runs(self, first: int, count: int) -> list[tuple[int, int]]:
        """Divide `count` updates from `first` on into runs of updates with equal masks. Return the
        index of each run's first update, and their number."""
        indices = range(first, first + count)
        return [(next(run), 1 + len(list(run))) for _, run in itertools.groupby(indices, self.mask)]

    def mask(self, index: Index) -> UpdateMask:
        """Return the parts that take part in update number `index`.

        The index is not batched over seeds: a batched predicate would turn a conditional into
        computing both sides. If the index is an int, so are the flags bools, and a program that
        is compiled for it has no conditional at all."""

        def every(interval: int) -> Flag:
            return True if interval == 1 else index % interval == 0

        reset: Flag = False
        if self.reset_every is not None:
            reset = (index + 1) % self.reset_every == 0
        for done in self.reset_at:
            reset = reset | (index + 1 == done)
        return UpdateMask(every(self.policy), every(self.targets), reset)


def when(flag: Flag, compute: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return `compute()` if the flag is set, else `otherwise()`; the other branch costs nothing."""
    if isinstance(flag, bool):
        return compute() if flag else otherwise()
    return jax.lax.cond(flag, compute, otherwise)


_ACTOR_AND_CRITIC = {"actor": "actor_learning_rate", "critic": "critic_learning_rate"}


@final
@dataclass(frozen=True)
class Optimizers:
    """One optimizer for each of the params that learn, with the settings of a config."""

    config: Any
    networks: Mapping[str, str] = field(default_factory=_ACTOR_AND_CRITIC.copy)
    """Networks that learn -> the setting of their own learning rate, which may be absent."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """The same for params that are no networks: no clipping, no weight decay."""
    clip_together: bool = False  # the gradients of all networks, or each one's by itself
    undelayed: tuple[str, ...] = ("critic",)  # the params that move also if the policy does not
    project: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # after each step

    @property
    def learning_rates(self) -> dict[str, str]:
        """All params that learn, with the settings of their learning rates."""
        return {**self.networks, **self.numbers}

    def init(self, params: Any) -> dict[str, Tree]:
        """Make the optimizer states of new params."""
        learned = without_statistics(params)
        return {
            name: self._direction(name).init(getattr(learned, name)) for name in self.learning_rates
        }

    def step(self, state: TrainState, gradients: Gradients) -> tuple[Any, dict[str, Tree]]:
        """Return the new params and optimizer states. Delayed parts do not change."""
        learned = without_statistics(state.params)
        clipped, params, opt_state = self._clip(without_statistics(gradients.params)), {}, {}
        for name in self.learning_rates:
            old = getattr(learned, name), state.opt_state[name]
            params[name], opt_state[name] = when(
                True if name in self.undelayed else gradients.mask.policy,
                partial(self._move, state, name, clipped[name], *old),
                lambda old=old: old,
            )
            before, change = getattr(state.params, name), getattr(gradients.params, name)
            params[name] = move_statistics(before, params[name], change)
        return state.params._replace(**params), opt_state

    def _move(
        self, state: TrainState, name: str, gradient: Tree, old: Tree, opt_state: Tree
    ) -> tuple[Tree, Tree]:
        rate = state.hyper.get(self.learning_rates[name], state.hyper["learning_rate"])
        new, opt_state = descend(self._direction(name), gradient, opt_state, old, rate)
        new = self.project[name](new) if name in self.project else new
        unit_weights = self.config.unit_weights and name in self.networks
        return project_weights(new) if unit_weights else new, opt_state

    def _clip(self, gradients: Any) -> dict[str, Any]:
        clipped: dict[str, Any] = {name: getattr(gradients, name) for name in self.learning_rates}
        if self.config.max_grad_norm is None:
            return clipped
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        for names in [self.networks] if self.clip_together else [[name] for name in self.networks]:
            group = {name: clipped[name] for name in names}
            updated: Any = clip.update(group, clip.init(group))[0]
            clipped |= updated
        return clipped

    def _direction(self, name: str) -> optax.GradientTransformation:
        """Make what turns gradients into directions; learning rates come from `state.hyper`.

        In RMSprop ε is inside the root, g/√(v + ε), or outside, g/(√v + ε). That decides the size
        of the first steps, and with it whether A2C is stable."""
        config, epsilon = self.config, self.config.optimizer_epsilon
        if config.optimizer == "rmsprop":
            epsilon = 1e-5 if epsilon is None else epsilon
            return optax.scale_by_rms(
                config.rmsprop_decay, epsilon, eps_in_sqrt=config.epsilon_inside_root
            )
        epsilon = 1e-8 if epsilon is None else epsilon
        adam = optax.scale_by_adam(config.adam_beta1, config.adam_beta2, epsilon)
        if config.optimizer == "adamw" and name in self.networks:
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
    """Take one step of an optimizer; return the new params and optimizer state."""
    direction, opt_state = optimizer.update(gradients, opt_state, params)
    return jax.tree.map(lambda p, d: p - step_size * d, params, direction), opt_state


def move_targets(state: TrainState, params: Any, names: tuple[str, ...], flag: Flag) -> Any:
    """Move the targets of the named params towards the new params by τ, unless that is delayed."""
    if not names:
        return state.targets
    return when(
        flag,
        lambda: polyak(state.targets, only(params, names), state.hyper["tau"]),
        lambda: state.targets,
    )


def only(params: Any, names: tuple[str, ...]) -> Any:
    """Return the params with None in place of all that are not named."""
    return type(params)(*(x if name in names else None for name, x in params._asdict().items()))
