"""Show the last few frames as one observation, for all kinds of environments."""

from dataclasses import replace

from understudy.envs.base import NativeEnv
from understudy.envs.make import EnvSource
from understudy.envs.native.wrappers import StackedNative
from understudy.types import ArraySpec, ConfigError, EnvironmentError


def stack_frames(source: NativeEnv | EnvSource, count: int) -> NativeEnv | EnvSource:
    """Return the same environments, each showing its last `count` frames as one observation
    [count, *frame], the newest last. A source that shows so many already is returned unchanged."""
    if count < 1:
        raise ConfigError(f"frame_stack must be at least 1, got {count}")
    seen = source.spec.observation
    if seen.frames == count:
        return source
    if not seen.is_image or seen.frames > 1:
        raise EnvironmentError(
            f"frame_stack={count} is for images, but observations are {_kind(seen)}"
        )
    if isinstance(source, NativeEnv):
        return StackedNative(source, count)
    if source.kind == "vector":
        raise EnvironmentError(
            f"frame_stack={count} cannot wrap a vector environment: let it make its environments "
            f"with understudy.envs.Stacked(env, {count})"
        )
    stack = replace(seen, shape=(count, *seen.shape), frames=count)
    return replace(source, spec=replace(source.spec, observation=stack), frames=count)


def _kind(seen: ArraySpec) -> str:
    if seen.frames > 1:
        return f"stacks of {seen.frames} frames already"
    if seen.parts:
        return "dicts"
    if len(seen.shape) == 1:
        return f"vectors of shape {seen.shape}"
    return f"{seen.dtype} arrays of shape {seen.shape}"
