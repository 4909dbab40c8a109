"""A user's own gymnasium.vector.VectorEnv, read correctly in every autoreset mode."""

from collections.abc import Sequence
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from understudy.envs.base import HostEnvs, HostStep
from understudy.envs.fault_guard import CLIPPED, DEFAULT_GUARD, LIMIT, Fault, FaultCounter
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.spaces import ActionMap, spec_of
from understudy.observation_packing import Packer, castable, flat
from understudy.types import EnvironmentError


@final
class UserVectorEnvs(HostEnvs):
    """The three ways a vector environment can handle an episode's end, as one.

    - NEXT_STEP: at the end the final observation comes; the following step ignores its action
      and only resets. That row is no transition: `valid` is False there.
    - SAME_STEP: the reset observation comes at once, the final one in `info["final_obs"]`.
    - DISABLED: nothing happens; this class resets the ended rows, seeded.

    In the first two modes the vector environment resets by itself and cannot be told a seed,
    so only the first episode of each row is seeded from the run's seed tree. No row can be built
    again alone: absurd numbers are clipped here as everywhere, all other faults are errors.
    """

    replayable = False
    steps_rows = False

    def __init__(self, vector_env: VectorEnv, seeds: EpisodeSeeds, owned: bool = True):
        """`owned=False` leaves the vector environment open at `close`: it is the user's."""
        self._env: Any = vector_env
        self._seeds = seeds
        self._owned = owned
        self._closed = False
        self._mode = _mode(vector_env)
        self.num_envs = int(vector_env.num_envs)
        self.spec = spec_of(vector_env.single_observation_space, vector_env.single_action_space)
        self._action_map = ActionMap(self.spec.action)
        self._packer = Packer.of(self.spec.observation)
        self._dtype = self._packer.dtype
        self._shape = (self.num_envs, *self.spec.observation.shape)
        self._episodes = np.full(self.num_envs, -1, np.int64)
        self._only_resets = np.zeros(self.num_envs, np.bool_)  # NEXT_STEP: ended one step ago
        self._counter = FaultCounter(DEFAULT_GUARD)
        self.faults = self._counter.counts

    @property
    def episodes(self) -> np.ndarray:
        return self._episodes.copy()

    def reset(self) -> np.ndarray:
        self._episodes += 1
        self._only_resets[:] = False
        seeds = self._row_seeds()
        return self._read(self._seeded_reset(seeds, seeds[0]), "reset()")

    def restart(self) -> np.ndarray:
        self._episodes[:] = -1
        return self.reset()

    def step(self, action: np.ndarray, only: np.ndarray | None = None) -> HostStep:
        if only is not None:
            raise EnvironmentError(
                "the rows of a vector environment can only be stepped together: give a callable "
                "that makes one environment"
            )
        real = self._action_map.to_real(action)
        try:
            result = self._env.step(real)
        except Exception as error:
            raise _raised("step()", error) from error
        context = f"actions {action.tolist()}" if len(action) <= 8 else "step()"
        following = self._read(result[0], context)
        reward = self._rewards(result[1], context)
        terminated = np.array(result[2], np.bool_)
        last = terminated | np.asarray(result[3], np.bool_)
        valid = ~self._only_resets
        if self._mode is AutoresetMode.NEXT_STEP:
            # A row that only reset says nothing of its new episode yet: believe no flags there.
            terminated &= valid
            last &= valid
            self._episodes += self._only_resets
            self._only_resets = last.copy()
            return HostStep(reward, terminated, last, following, following, valid)
        if not last.any():
            return HostStep(reward, terminated, last, following, following, valid)
        self._episodes += last
        if self._mode is AutoresetMode.SAME_STEP:
            observation, following = following, self._final(following, last, result[4], context)
        else:
            observation = self._reset_where(last, following)
        return HostStep(reward, terminated, last, following, observation, valid)

    def replay(self, episodes: np.ndarray, actions: Sequence[np.ndarray]) -> np.ndarray:
        raise EnvironmentError(
            "the episodes of a vector environment cannot be brought back: give a callable that "
            "makes one environment"
        )

    def close(self) -> None:
        if self._owned and not self._closed:
            self._env.close()
        self._closed = True

    def _row_seeds(self) -> list[int]:
        return [self._seeds(row, episode) for row, episode in enumerate(self._episodes)]

    def _seeded_reset(self, seeds: list[int], single: int, mask: np.ndarray | None = None) -> Any:
        # The environment may take the options apart: each call gets its own.
        options = (None if mask is None else {"reset_mask": mask.copy()} for _ in range(2))
        try:
            return self._env.reset(seed=seeds, options=next(options))[0]
        except (TypeError, ValueError, gymnasium.error.Error):
            pass  # some vector environments know one seed for all of their rows only
        except Exception as error:
            raise _raised("reset()", error) from error
        try:
            return self._env.reset(seed=single, options=next(options))[0]
        except Exception as error:
            raise _raised("reset()", error) from error

    def _reset_where(self, ended: np.ndarray, following: np.ndarray) -> np.ndarray:
        """DISABLED: reset the ended rows; the others keep the observation they are at."""
        seeds = self._row_seeds()
        fresh = self._seeded_reset(seeds, seeds[int(np.argmax(ended))], ended)
        observation = following.copy()
        observation[ended] = self._read(fresh, "reset()")[ended]
        return observation

    def _final(
        self, fresh: np.ndarray, ended: np.ndarray, info: dict[str, Any], context: str
    ) -> np.ndarray:
        """SAME_STEP: the true next observations, with the final ones where episodes ended."""
        finals = info.get("final_obs")
        following = fresh.copy()
        for row in np.flatnonzero(ended):
            final = None if finals is None else _row_of(finals, int(row))
            if final is None:
                raise EnvironmentError(
                    f"environment {row}: the episode ended but info has no final_obs for it, "
                    "which the SAME_STEP autoreset mode promises"
                )
            if self._packer.has_parts:
                following[row] = self._packed(final, context, int(row))[0]
                continue
            final = np.array(final)
            if final.shape != self._shape[1:]:
                raise _wrong_shape(int(row), self._shape[1:], final.shape)
            following[row] = self._sane(final[None], context, int(row))[0]
        return following

    def _read(self, observation: Any, context: str) -> np.ndarray:
        """A checked copy: with `copy=False` the vector environment reuses its arrays."""
        if self._packer.has_parts:
            return self._packed(observation, context)
        observation = np.asarray(observation)
        if observation.shape != self._shape:
            raise EnvironmentError(
                f"the vector environment was expected to give observations of shape "
                f"{self._shape}, got {observation.shape} ({context})"
            )
        if not castable(observation.dtype, self._dtype):
            raise EnvironmentError(
                f"the vector environment was expected to give observations of dtype "
                f"{self._dtype}, got {observation.dtype} ({context})"
            )
        return self._sane(observation, context).astype(self._dtype)

    def _packed(self, observation: Any, context: str, row: int | None = None) -> np.ndarray:
        """[rows, ...] of entries that are not one array, or [1, ...] of one `row` of them."""
        try:
            entries = self._packer.entries(observation, self.num_envs if row is None else None)
        except EnvironmentError as error:
            whose = "the vector environment" if row is None else f"environment {row}"
            raise EnvironmentError(f"{whose}: {error} ({context})") from None
        if row is not None:
            entries = [entry[None] for entry in entries]
        sane = [
            self._sane(entry, context, row or 0, called)
            for entry, called in zip(entries, self._packer.called, strict=True)
        ]
        out = np.empty((len(sane[0]), *self._shape[1:]), self._dtype)
        self._packer.write(sane, out)
        return out

    def _rewards(self, rewards: Any, context: str) -> np.ndarray:
        rewards = self._sane(np.asarray(rewards, np.float64), context, what="reward")
        return rewards.astype(np.float32)

    def _sane(
        self, values: np.ndarray, context: str, first_row: int = 0, what: str = "observation"
    ) -> np.ndarray:
        """The same numbers, absurd ones clipped; what is no number is an error."""
        if values.dtype.kind != "f" or (np.abs(values) <= LIMIT).all():
            return values
        wrong = ~np.isfinite(values)
        clipped = not wrong.any()
        if clipped:
            wrong = np.abs(values) > LIMIT
        row, *rest = np.argwhere(wrong)[0].tolist()
        where = f" at index {rest}" if rest else ""
        problem = f"environment {first_row + row}: the {what} is {values[(row, *rest)]}{where}"
        if not clipped:
            raise EnvironmentError(f"{problem} ({context})")
        told = f"{problem}, clipped to {LIMIT:g} ({context})"
        self._counter.record([Fault(CLIPPED, told, count=int(wrong.sum()))])
        return np.clip(values, -LIMIT, LIMIT)


def _row_of(finals: Any, row: int) -> Any:
    """Gymnasium's own give one object a row, others a dict of arrays."""
    if isinstance(finals, dict):
        return {name: values[row] for name, values in flat(finals).items()}
    return finals[row]


def _raised(call: str, error: Exception) -> EnvironmentError:
    return EnvironmentError(
        f"the vector environment's {call} raised {type(error).__name__}: {error}"
    )


def _wrong_shape(row: int, expected: tuple[int, ...], got: tuple[int, ...]) -> EnvironmentError:
    return EnvironmentError(
        f"environment {row}: expected an observation of shape {expected}, got {got}"
    )


def _mode(vector_env: VectorEnv) -> AutoresetMode:
    """A wrong guess stores false transitions, so there is none."""
    mode = (vector_env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise EnvironmentError(
            f'the vector environment\'s metadata["autoreset_mode"] is {mode!r}; it must be one '
            f"of {', '.join(str(known) for known in AutoresetMode)}, so that the ends of its "
            "episodes are read correctly"
        ) from None
