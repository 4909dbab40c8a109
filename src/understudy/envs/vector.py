"""A user's own gymnasium.vector.VectorEnv, read correctly in every autoreset mode."""

from collections.abc import Sequence
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.env_changes import SET, EnvChanges
from understudy.envs.episode_info import EpisodeInfo, InfoTally, split_rows
from understudy.envs.fault_guard import DEFAULT_GUARD, LIMIT, Fault, FaultKind, find_abnormal
from understudy.envs.rows import describe_error
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.spaces import spec_of
from understudy.observation_packing import flat
from understudy.types import EnvironmentError


@final
class UserVectorEnvs(HostEnvs):
    """Read the three ways in which a vector environment can handle an episode's end.

    - NEXT_STEP: at the end the final observation comes; the following step ignores its action
      and only resets. That row is no transition: `valid` is False there.
    - SAME_STEP: the reset observation comes at once, the final one in `info["final_obs"]`, and
      the info of the last step in `info["final_info"]`.
    - DISABLED: nothing happens; this class resets the ended rows, seeded.

    In the first two modes the vector environment resets by itself and takes no seed, so only the
    first episode of each row is seeded from the run's seed tree. A single row cannot be built
    again: absurd numbers are clipped here as everywhere, all other faults are errors.
    """

    replayable = False
    steps_rows = False

    def __init__(self, vector_env: VectorEnv, seeds: EpisodeSeeds, owned: bool = True):
        """`owned=False` leaves the vector environment open at `close`: it is the user's."""
        self._env: Any = vector_env
        self._seeds = seeds
        self._owned = owned
        self._mode = _autoreset_mode(vector_env)
        spec = spec_of(vector_env.single_observation_space, vector_env.single_action_space)
        super().__init__([spec] * int(vector_env.num_envs), DEFAULT_GUARD)
        self._only_resets = np.zeros(self.num_envs, np.bool_)  # NEXT_STEP: ended one step ago
        self._info_tally = InfoTally(self.num_envs)

    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        if only is not None:
            raise EnvironmentError(
                "the rows of a vector environment can only be stepped together: give a callable "
                "that makes one environment"
            )
        real = self.action_map.to_real(action)
        try:
            result = self._env.step(real)
        except Exception as error:
            raise _raised("step()", error) from error
        context = f"actions {action.tolist()}" if len(action) <= 8 else "step()"
        following = self._read(result[0], context)
        reward = self._clip(np.asarray(result[1], np.float64), context, what="reward")
        reward = reward.astype(np.float32)
        terminated = np.array(result[2], np.bool_)
        last = terminated | np.asarray(result[3], np.bool_)
        valid = ~self._only_resets
        observation = following
        if self._mode is AutoresetMode.NEXT_STEP:
            # The flags of a row that only reset do not belong to its new episode.
            terminated &= valid
            last &= valid
            self.episodes += self._only_resets
            self._only_resets = last.copy()
        elif last.any():
            self.episodes += last
            if self._mode is AutoresetMode.SAME_STEP:
                following = self._read_final(observation, last, result[4], context)
            else:
                observation = following.copy()
                observation[last] = self._reset(last)[last]
        self._add_infos(result[4], valid, last)
        return HostStep(reward, terminated, last, following, observation, valid)

    def _add_infos(self, infos: Any, valid: np.ndarray, last: np.ndarray) -> None:
        """Add the infos of a step to those of the open episodes, and keep those of ended ones."""
        resets_at_once = self._mode is AutoresetMode.SAME_STEP
        found = split_rows(infos, valid & ~last if resets_at_once else valid)
        if resets_at_once and last.any() and isinstance(infos, dict):
            found |= split_rows(infos.get("final_info"), last)
        for row, info in found.items():
            self._info_tally.add(row, info)
        for row in np.flatnonzero(last).tolist():
            self._info_tally.end(row)
            self._info_tally.begin(row)

    def take_infos(self) -> dict[int, EpisodeInfo]:
        return self._info_tally.take()

    def read_open_infos(self) -> dict[int, EpisodeInfo]:
        return self._info_tally.read_open()

    def close(self) -> None:
        if self._owned:
            self._env.close()
        self._owned = False  # closed once

    def change(self, kind: str, name: str, value: Any) -> None:
        """Change all environments at once, by the vector environment's own method."""
        changes = EnvChanges(self.changes.total, self.changes.entries)
        changes.add(kind, name, value, self.applied)
        if kind == SET:
            self.inspect(kind, name)  # most vector environments would add an unknown attribute
        self.use_changes(changes)

    def inspect(self, kind: str, name: str) -> list[Any]:
        try:
            return list(self._env.get_attr(name))
        except Exception as error:
            raise _raised(f"get_attr({name!r})", error) from error

    def use_changes(self, changes: EnvChanges) -> None:
        for change in changes.between(int(self.applied[0]), changes.total):
            try:
                if change.kind == SET:
                    self._env.set_attr(change.name, [change.value] * self.num_envs)
                else:
                    self._env.call(change.name, *change.value)
            except Exception as error:
                raise _raised(f"{change.kind}({change.name!r})", error) from error
        self.changes, self.applied[:] = changes, changes.total

    def begin_episodes(
        self, episodes: np.ndarray, actions: Sequence[Any], until: np.ndarray
    ) -> np.ndarray:
        self.episodes[:] = episodes
        self._only_resets[:] = False
        self._info_tally = InfoTally(self.num_envs)
        return self._reset()

    def _reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        """Reset the rows of `mask`, or all, seeded; returns observations of all rows."""
        seeds = [self._seeds(row, episode) for row, episode in enumerate(self.episodes)]
        first = 0 if mask is None else int(np.argmax(mask))
        for seed in (seeds, seeds[first]):
            # The environment may take the options apart: each call gets its own.
            options = None if mask is None else {"reset_mask": mask.copy()}
            try:
                observation = self._env.reset(seed=seed, options=options)[0]
            except Exception as error:
                # Some vector environments take only one seed for all of their rows.
                refused = isinstance(error, TypeError | ValueError | gymnasium.error.Error)
                if seed is not seeds or not refused:
                    raise _raised("reset()", error) from error
            else:
                return self._read(observation, "reset()")
        raise AssertionError("the second attempt returns or raises")

    def _read_final(
        self, fresh: np.ndarray, ended: np.ndarray, info: dict[str, Any], context: str
    ) -> np.ndarray:
        """SAME_STEP: the true next observations, with the final ones where episodes ended."""
        finals = info.get("final_obs")
        following = fresh.copy()
        for row in np.flatnonzero(ended).tolist():
            if isinstance(finals, dict):  # of arrays; Gymnasium's own give one object a row
                final = {name: values[row] for name, values in flat(finals).items()}
            else:
                final = None if finals is None else finals[row]
            if final is None:
                raise EnvironmentError(
                    f"environment {row}: the episode ended but info has no final_obs for it, "
                    "which the SAME_STEP autoreset mode promises"
                )
            following[row] = self._read(final, context, row)[0]
        return following

    def _read(self, observation: Any, context: str, row: int | None = None) -> np.ndarray:
        """Check and copy observations: [rows, ...], or [1, ...] of one `row`. (With `copy=False`
        the vector environment reuses its arrays.)"""
        try:
            entries = self.packer.entries(observation, self.num_envs if row is None else None)
        except EnvironmentError as error:
            source = "the vector environment" if row is None else f"environment {row}"
            raise EnvironmentError(f"{source}: {error} ({context})") from None
        if row is not None:
            entries = [entry[None] for entry in entries]
        clipped = [
            self._clip(entry, context, row or 0, slot.label)
            for entry, slot in zip(entries, self.packer.slots, strict=True)
        ]
        out = np.empty((len(clipped[0]), *self.packer.shape), self.packer.dtype)
        self.packer.write(clipped, out)
        return out

    def _clip(
        self, values: np.ndarray, context: str, first_row: int = 0, what: str = "observation"
    ) -> np.ndarray:
        """Clip absurd numbers; those that are not finite are an error."""
        abnormal = find_abnormal(values)
        if abnormal is None:
            return values
        row, *rest = abnormal.index
        where = f" at index {rest}" if rest else ""
        problem = f"environment {first_row + row}: the {what} is {abnormal.value}{where}"
        if not abnormal.finite:
            raise EnvironmentError(f"{problem} ({context})")
        message = f"{problem}, clipped to {LIMIT:g} ({context})"
        self.fault_counter.record([Fault(FaultKind.CLIPPED, message, count=abnormal.count)])
        return np.clip(values, -LIMIT, LIMIT)


def _raised(call: str, error: Exception) -> EnvironmentError:
    return EnvironmentError(f"the vector environment's {call} raised {describe_error(error)}")


def _autoreset_mode(vector_env: VectorEnv) -> AutoresetMode:
    """Return the declared mode. It is not guessed: a wrong guess would store false transitions."""
    mode = (vector_env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise EnvironmentError(
            f'the vector environment\'s metadata["autoreset_mode"] is {mode!r}; it must be one '
            f"of {', '.join(str(known) for known in AutoresetMode)}, so that the ends of its "
            "episodes are read correctly"
        ) from None
