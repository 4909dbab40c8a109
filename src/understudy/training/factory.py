"""Trainers and episode runners for any environments."""

from understudy.envs.base import NativeEnv
from understudy.envs.fault_guard import DEFAULT_GUARD, Guard
from understudy.envs.make import EnvSource, stack_frames
from understudy.envs.seeds import SELECTION, EpisodeSeeds
from understudy.training.device_loop import DeviceTrainer
from understudy.training.episode_runner import (
    ENDLESS_STEPS,
    EpisodePlan,
    EpisodeRunner,
    HostEpisodeRunner,
)
from understudy.training.loop import HostTrainer
from understudy.training.native_episode_runner import NativeEpisodeRunner
from understudy.training.trainer import Trainer, TrainingSetup
from understudy.types import ConfigError

Source = EnvSource | NativeEnv


def check_workers(env_workers: int, source: Source) -> None:
    if env_workers < 0:
        raise ConfigError(f"env_workers must be at least 0, got {env_workers}")
    if env_workers and isinstance(source, NativeEnv):
        raise ConfigError("env_workers is for Gymnasium environments, not for native ones")


def with_frame_stack(source: Source, frames: int) -> Source:
    """The environments with stacks of `frames` observations, where more than one is asked for."""
    if frames == 1 or source.spec.observation.frames == frames:
        return source
    return stack_frames(source, frames)


def make_trainer(
    setup: TrainingSetup, source: Source, env_workers: int, guard: Guard = DEFAULT_GUARD
) -> Trainer:
    """Make a device loop for native environments, a host loop for all others."""
    if isinstance(source, NativeEnv):
        return DeviceTrainer(setup, source)
    seeds = EpisodeSeeds(setup.seed, setup.num_envs, setup.num_seeds)
    rows = setup.num_seeds * setup.num_envs
    envs = source.make_host(rows, seeds, env_workers, guard)
    envs.set_action_space(setup.spec.action)
    return HostTrainer(setup, envs)


def longest_episode(source: Source) -> int:
    """The most steps of an episode of an evaluation."""
    if isinstance(source, NativeEnv):
        return source.max_steps
    return source.time_limit or ENDLESS_STEPS


def plan_selection(setup: TrainingSetup, source: Source, episodes: int) -> EpisodePlan:
    """Plan the episodes of every seed of a setup by which training selects the best policy."""
    return EpisodePlan(
        algorithm=setup.algorithm,
        spec=setup.spec,
        seeds=EpisodeSeeds(setup.seed, episodes, setup.num_seeds, SELECTION),
        num_policies=setup.num_seeds,
        episodes=episodes,
        limited=isinstance(source, NativeEnv) or source.time_limit is not None,
    )


def make_episode_runner(
    plan: EpisodePlan, source: Source, env_workers: int = 0, guard: Guard = DEFAULT_GUARD
) -> EpisodeRunner:
    """A runner on environments of its own, in processes of its own if there are `env_workers`."""
    if isinstance(source, NativeEnv):
        return NativeEpisodeRunner(plan, source)
    return HostEpisodeRunner(plan, source, env_workers, guard)
