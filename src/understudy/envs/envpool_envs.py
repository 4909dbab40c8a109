"""Environments of EnvPool, which steps many in threads of C++. EnvPool is imported when a pool is
made.

EnvPool takes seeds only when a pool is made, one for each row. So a seeded reset makes a new pool,
which takes milliseconds, and the same seeds give the same episodes. The step after the end of an
episode ignores its action and resets (the autoreset mode NEXT_STEP).
"""

import importlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from understudy.envs.arguments import EnvArgs, cannot_be_made, refuse_env_args
from understudy.envs.names import did_you_mean, missing_package
from understudy.envs.rows import describe_error
from understudy.types import EnvironmentError

# Arguments that the library sets, or that would change what a row is.
OURS = ("num_envs", "batch_size", "seed", "env_seed", "max_num_players", "gym_reset_return_info")
# An evaluation plays whole games and counts points.
EVALUATION = {"reward_clip": False, "episodic_life": False}
BOOKKEEPING = ("env_id", "players", "elapsed_step")  # in infos: not about the task
ENDLESS = 2**31 - 1  # EnvPool's way to say that there is no time limit


@final
@dataclass(frozen=True)
class PoolTask:
    """A task of EnvPool with its arguments. Spaces and limit are those of a pool."""

    name: str
    """EnvPool's own name: "HalfCheetah-v5", "Pong-v5" …"""
    args: EnvArgs
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    metadata: Mapping[str, Any]
    time_limit: int | None

    def provide(self, rows: int, for_training: bool) -> tuple[VectorEnv, bool]:
        """Return a vector environment of so many rows, which the caller closes."""
        changed = {} if for_training else EVALUATION
        args = {key: changed.get(key, value) for key, value in self.args.items()}
        return Pool(self, rows, args), True


def read_task(name: str, args: EnvArgs) -> PoolTask:
    """Make a pool of one environment, to learn about it and to report mistakes."""
    prefixed = f"envpool:{name}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise missing_package(prefixed, "understudy[envpool]") from error
    tasks = envpool.list_all_envs()
    if name not in tasks:
        near = did_you_mean(name, tasks, "envpool:") or "; envpool.list_all_envs() lists all"
        raise EnvironmentError(f'EnvPool has no environment "{name}"{near}')
    own = {key: value for key, value in args.items() if key in OURS}
    refuse_env_args(prefixed, own, "the library sets them")
    try:
        pool = make_pool(name, 1, args, [0])
    except Exception as error:
        config = envpool.make_spec(name).config._asdict()
        known = {key: value for key, value in config.items() if key not in (*OURS, "base_path")}
        shown = ", ".join(f"{key}={value!r}" for key, value in known.items())
        problem = " ".join(describe_error(error).split())[:300]
        raise cannot_be_made(prefixed, args, problem, f"({shown})") from error
    config, space = pool.config, pool.observation_space
    # EnvPool stacks the frames of games itself. A lost life does not begin a new stack.
    frames = config.get("stack_num", 1) if config.get("gray_scale") else 1
    if frames > 1 and not config.get("episodic_life") and space.shape[0] == frames:
        space.frames = frames
    limit = config.get("max_episode_steps", ENDLESS)
    task = PoolTask(
        name,
        args,
        space,
        pool.action_space,
        {"autoreset_mode": pool.metadata.get("autoreset_mode")},
        limit if 0 < limit < ENDLESS else None,
    )
    pool.close()
    return task


def make_pool(name: str, rows: int, args: EnvArgs, seeds: Sequence[int]) -> Any:
    """Make a pool. Its seeds are numbers of 31 bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, about the bounds of spaces
        pool = importlib.import_module("envpool").make_gymnasium(
            name, num_envs=rows, seed=[int(seed) % 2**31 for seed in seeds], **args
        )
        _ = pool.observation_space, pool.action_space  # made here, where warnings are ignored
        return pool


@final
class Pool(VectorEnv):
    """Rows of a task of EnvPool as a vector environment whose resets can be seeded."""

    def __init__(self, task: PoolTask, rows: int, args: EnvArgs):
        self._task, self._args, self.num_envs = task, args, rows
        self._pool: Any = None
        self.metadata = dict(task.metadata)
        self.single_observation_space = task.observation_space
        self.single_action_space = task.action_space

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Make a new pool with these seeds, one for each row."""
        if not isinstance(seed, Sequence):
            raise ValueError(f"EnvPool needs a list of {self.num_envs} seeds, got {seed}")
        self.close()
        self._pool = make_pool(self._task.name, self.num_envs, self._args, seed)  # type: ignore
        return self._pool.reset()

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *result, info = self._pool.step(actions)
        return *result, {key: info[key] for key in info if key not in BOOKKEEPING}  # type: ignore

    def close(self, **options: Any) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None
