"""Acting: the policies of some of the seeds, their recurrent states and their random keys."""

import dataclasses
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from understudy.algorithms.base import Memory
from understudy.training.actions import initial_memory, uniform_actions
from understudy.training.program_cache import shared
from understudy.training.seed_axis import ACTING, over_seeds, seed_keys
from understudy.training.setup import TrainingSetup
from understudy.training.step_packing import acting_dtype, as_bytes, extras_of, unpack_rows
from understudy.types import Key, Tree

MOST_POLLS = 5_000  # about half a millisecond


class Acted(NamedTuple):
    """Computed actions, and what is recorded with them."""

    action: Any  # [K, N, ...]
    extras: dict[str, Array]
    memory: Tree  # before the step


@final
class Actor:
    """Computes the actions of some of the seeds."""

    def __init__(
        self, setup: TrainingSetup, seeds: slice, policy: Any, read_policy: Callable[[Tree], Any],
        device: Any, stream: int = 0,
    ):  # fmt: skip
        """`policy` [seeds, ...] has the shapes of policies. Acting takes policies in any form;
        `read_policy` makes one seed's policy of it inside the program."""
        count, first = seeds.stop - seeds.start, setup.seed + seeds.start
        own = dataclasses.replace(setup, seed=first, num_seeds=count)
        part = None if count == setup.num_seeds else (seeds.start, seeds.stop)
        self.programs = {
            random: act_program(own.unseeded, part, read_policy, random) for random in (False, True)
        }
        keys = seed_keys(first, count, ACTING)
        if stream:
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, stream)
        policy = jax.tree.map(lambda x: x[seeds], policy)
        memory = initial_memory(setup.algorithm, policy, count, setup.num_envs)
        self.device = device
        # Committed to where acting happens: the act programs follow them there.
        self.memory, self.key = jax.device_put((memory, keys), device)
        self.policy: Tree = None  # of all seeds, in the form that acting takes
        self.acted: Acted | None = None  # the next actions, if they are computed already

    def act(self, seen: np.ndarray, random: bool) -> None:
        """Start to compute the next actions for rows [K, N] of observations. Returns at once."""
        before = self.memory
        action, extras, self.memory, self.key = self.programs[random](
            self.policy, before, as_bytes(seen), self.key
        )
        self.acted = Acted(action, extras, before)

    def take(self, poll: bool) -> Acted:
        """Wait for the computed actions. With `poll`, poll before sleeping: waking up takes longer
        than acting with a small network. Only where nothing else could use the core."""
        acted, self.acted = self.acted, None
        assert acted is not None, "act comes before step"
        for _ in range(MOST_POLLS if poll else 0):
            if acted.action.is_ready():
                break
        return acted


def join(trees: list[Tree]) -> Tree:
    """Concatenate the trees of parts of the seeds."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *trees)


@shared
def act_program(
    setup: TrainingSetup,
    part: tuple[int, int] | None,
    read_policy: Callable[[Tree], Any],
    random: bool,
) -> Any:
    """The compiled act program, lifted over seeds. It receives the policies of all seeds, and uses
    those of its part."""
    algorithm, spec, num_envs = setup.algorithm, setup.spec, setup.num_envs
    rows, names = acting_dtype(spec), extras_of(algorithm)

    def act(policy: Tree, memory: Tree, data: Array, key: Key):
        key, draw_key = jax.random.split(key)
        if random and not isinstance(memory, Memory):
            return uniform_actions(spec, num_envs, draw_key), {}, memory, key
        seen = unpack_rows(rows, data)
        action, memory, extras = algorithm.act(
            read_policy(policy), memory, seen["observation"], seen["first"], draw_key, True
        )
        if random:  # but what was seen is remembered
            action = uniform_actions(spec, num_envs, draw_key)
        return action, {name: extras[name] for name in names}, memory, key

    lifted = over_seeds(act, setup.num_seeds)
    if part is None:
        return jax.jit(lifted)
    own = itemgetter(slice(*part))
    return jax.jit(lambda policy, *rest: lifted(jax.tree.map(own, policy), *rest))
