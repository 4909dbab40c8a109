"""When things happen: all of this arithmetic, in one place.

Steps are counted in *iterations*: one step of each of a member's `num_envs` environments, so
`num_envs` transitions. Updates come in *blocks*: after every `block_iterations` iterations,
`block_updates` updates. The block is the shortest one that holds the asked ratio of updates to
transitions exactly and spans whole multiples of `update_every` transitions; for rollouts it is
the horizon.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import final

from understudy.algorithms.base import Appetite, Rollout


@final
@dataclass(frozen=True)
class Cadence:
    num_envs: int
    random_iterations: int  # iterations with uniformly random actions
    first_learning_iteration: int  # the first one after which an update may happen
    block_iterations: int
    block_updates: int

    @classmethod
    def of(cls, appetite: Appetite, num_envs: int) -> "Cadence":
        if isinstance(appetite, Rollout):
            return cls(
                num_envs=num_envs,
                random_iterations=0,
                first_learning_iteration=0,
                block_iterations=appetite.horizon,
                block_updates=appetite.minibatches,
            )
        waiting = math.ceil(appetite.min_buffer_size / num_envs)
        if appetite.sequences is not None:  # until there is a whole one
            needed = appetite.sequences.burn_in + appetite.sequences.length
            waiting = max(waiting, needed + appetite.sequences.stride)
        ratio = Fraction(appetite.updates_per_step).limit_denominator(1000)
        aligned = appetite.update_every // math.gcd(appetite.update_every, num_envs)
        block = aligned * (aligned * num_envs * ratio).denominator
        return cls(
            num_envs=num_envs,
            random_iterations=math.ceil(appetite.start_steps / num_envs),
            first_learning_iteration=waiting - 1,
            block_iterations=block,
            block_updates=int(block * num_envs * ratio),
        )

    def refilling(self, iteration: int) -> "Cadence":
        """The same from `iteration` on with an empty ring: learning waits for it to fill."""
        waiting = iteration + self.first_learning_iteration
        return replace(self, first_learning_iteration=waiting)

    def random(self, iteration: int) -> bool:
        """Whether iteration number `iteration` (from 0) takes uniformly random actions."""
        return iteration < self.random_iterations

    def updates_after(self, iteration: int) -> int:
        """How many updates follow iteration number `iteration`, once its steps are stored.

        Blocks that ended before learning began are not owed: there is never a burst.
        """
        block_ends = (iteration + 1) % self.block_iterations == 0
        return self.block_updates if block_ends and self.learning(iteration) else 0

    def learning(self, iteration: int) -> bool:
        return iteration >= self.first_learning_iteration

    def steady(self, start: int, stop: int) -> bool:
        """Whether iterations start…stop-1 are whole blocks of acting by policy and learning."""
        whole = start % self.block_iterations == 0 and stop % self.block_iterations == 0
        first_block_end = start + self.block_iterations - 1
        return whole and not self.random(start) and self.learning(first_block_end)


def next_multiple(position: int, interval: int) -> int:
    """The first multiple of `interval` after `position`."""
    return (position // interval + 1) * interval
