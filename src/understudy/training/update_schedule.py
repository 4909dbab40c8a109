"""The update schedule: when actions are random, and how many updates follow each iteration.

An *iteration* is one step of each of a seed's `num_envs` environments: `num_envs` transitions.
After n transitions of learning, ⌊r·n⌋ updates have been done in all, where r is the exact fraction
of updates per transition. They are done where the number of transitions passes a multiple of
`release`. All counts are integers: no rounding error accumulates.

Many schedules are *regular*: the same number of updates follows each block of `block_iterations`
iterations. Learning then begins with a whole block, and the device loop compiles a program for it.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import final

from understudy.algorithms.base import Needs
from understudy.algorithms.on_policy import RolloutNeeds


@final
@dataclass(frozen=True)
class UpdateSchedule:
    num_envs: int
    ratio: Fraction  # updates per transition
    release: int  # updates are done where transitions pass a multiple of this
    random_iterations: int = 0  # iterations with uniformly random actions
    first_learning_iteration: int = 0  # the first one after which an update may happen

    @classmethod
    def of(cls, needs: Needs, num_envs: int, training: int = 0) -> "UpdateSchedule":
        """`training` is the length of the first training in steps; 0 where it is not known."""
        if isinstance(needs, RolloutNeeds):
            transitions = needs.horizon * num_envs
            return cls(num_envs, Fraction(needs.updates, transitions), release=transitions)
        random, enough = needs.start_steps, needs.min_buffer_size
        if random is None:
            random = needs.max_start_steps
            if training and training // 10 < random:
                random = training // 10
                enough = max(1, min(enough, random))
        waiting = math.ceil(enough / num_envs)
        if needs.sequences is not None:  # until there is a whole one
            needed = needs.sequences.burn_in + needs.sequences.length
            waiting = max(waiting, needed + needs.sequences.stride)
        if needs.updates_per_vector_step is None:
            ratio = exact(needs.updates_per_step)
        else:
            ratio = exact(needs.updates_per_vector_step) / num_envs
        return cls(
            num_envs=num_envs,
            ratio=ratio,
            release=needs.update_every,
            random_iterations=math.ceil(random / num_envs),
            first_learning_iteration=waiting - 1,
        )

    @cached_property
    def block_iterations(self) -> int:
        """The smallest number of iterations after which the schedule repeats itself."""
        aligned = self.release // math.gcd(self.release, self.num_envs)
        return aligned * (aligned * self.num_envs * self.ratio).denominator

    @cached_property
    def block_updates(self) -> int:
        return int(self.block_iterations * self.num_envs * self.ratio)

    @cached_property
    def regular(self) -> bool:
        """Whether all updates of a block follow its last iteration."""
        return self._owed((self.block_iterations - 1) * self.num_envs) == 0

    @property
    def first_update_iteration(self) -> int:
        """The iterations that are done when the first update follows."""
        transitions = math.ceil(math.ceil(1 / self.ratio) / self.release) * self.release
        iterations = math.ceil((self.origin + transitions) / self.num_envs)
        return max(iterations, self.first_learning_iteration + 1)

    def iterations_of_whole_periods(self, period: int, most: int) -> int:
        """Return the largest number of iterations up to `most` after which a multiple of `period`
        updates is owed; `most` if there is none from half of it on."""
        for iterations in range(most, most // 2 - 1, -1):
            if iterations * self.num_envs * self.ratio % period == 0:
                return iterations
        return most

    def refilling(self, iteration: int) -> "UpdateSchedule":
        """The same from `iteration` on with an empty buffer: learning waits until it fills."""
        waiting = iteration + self.first_learning_iteration
        return replace(self, first_learning_iteration=waiting)

    def random(self, iteration: int) -> bool:
        """Whether iteration number `iteration` (from 0) takes uniformly random actions."""
        return iteration < self.random_iterations

    def updates_after(self, iteration: int) -> int:
        """How many updates follow iteration number `iteration`, once its steps are stored."""
        return self.updates_between(iteration, iteration + 1)

    def updates_between(self, start: int, stop: int) -> int:
        """How many updates follow iterations start…stop-1."""
        return self._done_after(stop - 1) - self._done_after(start - 1)

    def learning(self, iteration: int) -> bool:
        return iteration >= self.first_learning_iteration

    def steady(self, start: int, stop: int) -> bool:
        """Whether iterations start…stop-1 are whole blocks of acting by policy and learning."""
        whole = start % self.block_iterations == 0 and stop % self.block_iterations == 0
        first_block_end = start + self.block_iterations - 1
        return self.regular and whole and not self.random(start) and self.learning(first_block_end)

    @cached_property
    def origin(self) -> int:
        """The transitions before learning began: those before the block, or before the interval
        between two releases, in which enough transitions are stored. Earlier ones owe nothing."""
        before = self.first_learning_iteration * self.num_envs
        unit = self.block_iterations * self.num_envs if self.regular else self.release
        return before // unit * unit

    def _done_after(self, iteration: int) -> int:
        """Updates in all, after iteration number `iteration`."""
        if iteration < self.first_learning_iteration:
            return 0
        return self._owed((iteration + 1) * self.num_envs - self.origin)

    def _owed(self, transitions: int) -> int:
        released = transitions // self.release * self.release
        numerator, denominator = self._exact_ratio
        return numerator * released // denominator

    @cached_property
    def _exact_ratio(self) -> tuple[int, int]:
        """Plain numbers: this is computed at each step, and a Fraction's parts are methods."""
        return self.ratio.numerator, self.ratio.denominator


def exact(number: float) -> Fraction:
    """The fraction that a decimal number was written as: 0.1 is 1/10."""
    return Fraction(repr(float(number)))


def next_multiple(position: int, interval: int) -> int:
    """The first multiple of `interval` after `position`."""
    return (position // interval + 1) * interval
