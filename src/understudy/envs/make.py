"""Turn the public `env` argument into environments that can be stepped."""

import copy
import importlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, final

import gymnasium
from gymnasium.vector import VectorEnv

from understudy.envs import arguments
from understudy.envs.arguments import EnvArgs
from understudy.envs.atari_games import AtariSettings, hint_at_adapter
from understudy.envs.base import HostEnvs, NativeEnv
from understudy.envs.descriptors import Descriptor, descriptors_of
from understudy.envs.fault_guard import DEFAULT_GUARD, Guard
from understudy.envs.gymnasium_envs import (
    NO_ARGS,
    close_logged,
    make_minatar,
    make_quietly,
    make_stacked,
    time_limit_of,
)
from understudy.envs.host_envs import ProcessEnvs, SerialEnvs
from understudy.envs.names import ADAPTERS, did_you_mean, missing_package, unknown_name
from understudy.envs.native import NATIVE
from understudy.envs.native.wrappers import StackedNative
from understudy.envs.rows import FAILURES, describe_error
from understudy.envs.seeds import TRAINING, EpisodeSeeds
from understudy.envs.spaces import spec_of
from understudy.envs.vector import UserVectorEnvs
from understudy.types import ArraySpec, ConfigError, EnvironmentError, Spec

_ACCEPTED = (
    'a Gymnasium id such as "Pendulum-v1", "module:Class" or "module:ID", '
    '"jax:ID" for an environment on the accelerator, "brax:NAME", "gymnax:ID", "atari:GAME", '
    '"envpool:ID", a callable that makes a gymnasium.Env, a gymnasium.Env, a '
    "gymnasium.vector.VectorEnv or a NativeEnv"
)

# Package that is imported → the word by which Gymnasium's message names it, what to install.
_EXTRAS = {
    "mujoco": ("mujoco", "understudy[mujoco]"),
    "Box2D": ("box2d", "understudy[box2d]"),
    "pygame": ("pygame", "gymnasium[classic-control]"),
}

# Before the slash of an id → the package that registers those environments, what to install.
_ON_DEMAND = {
    "ALE": ("ale_py", "understudy[atari]"),
    "MinAtar": ("minatar", "understudy[minatar]"),
}

# Kind of source → why it cannot move to worker processes.
_CALLABLE = "cannot move to worker processes: give a callable that makes one environment"
_STATIONARY = {
    "instance": f"an environment that exists already {_CALLABLE}",
    "vector": f"a vector environment {_CALLABLE}",
    "envpool": "EnvPool steps environments in threads: leave env_workers at 0, and set the "
    "number of threads with env_args num_threads (--env-arg num_threads=4)",
}

_log = logging.getLogger("understudy.envs")


@final
@dataclass(frozen=True)
class EnvSource:
    """A description of host environments, from which any number can be made."""

    name: str | None
    """The id that a checkpoint stores; None where `us.load` must be given the environment."""
    spec: Spec
    num_envs: int
    provide: Callable[[int, bool], tuple[Sequence[Callable[[], Any]] | VectorEnv, bool]]
    """provide(rows, for_training) returns one factory per row, or a vector environment of so many
    rows; and whether they are ours to close."""
    kind: str = "factory"
    """What the user gave: "factory", "instance", "vector" or "envpool"."""
    frames: int = 1
    """How many frames each environment is wrapped to show at once."""
    time_limit: int | None = None
    """Steps after which every episode ends; None where no limit is known."""

    def make_host(
        self,
        rows: int,
        seeds: EpisodeSeeds,
        workers: int = 0,
        guard: Guard = DEFAULT_GUARD,
        descriptor: Descriptor | None = None,
    ) -> HostEnvs:
        """Make `rows` environments (seeds by envs), in this process or in worker processes. The
        stream of `seeds` says for what: evaluation never steps the environments of training. Every
        step reports the `descriptor`, if one is given."""
        if workers and self.kind in _STATIONARY:
            raise EnvironmentError(_STATIONARY[self.kind])
        if descriptor is not None and self.kind in ("vector", "envpool"):
            raise EnvironmentError(
                "a vector environment has no single environments to describe: give a callable "
                "that makes one environment"
            )
        provided, owned = self.provide(rows, seeds.stream == TRAINING)
        if isinstance(provided, VectorEnv):
            return UserVectorEnvs(provided, seeds, owned)
        if self.frames > 1:
            provided = [partial(make_stacked, factory, self.frames) for factory in provided]
        if workers:
            return ProcessEnvs(provided, seeds, workers, guard, descriptor)
        return SerialEnvs(provided, seeds, owned, guard, descriptor)

    @property
    def descriptors(self) -> dict[str, Descriptor]:
        """The descriptors of behavior that are known for these environments, the default first."""
        return descriptors_of(self.name)


def resolve(
    env: Any, num_envs: int | None = None, default: int = 1, env_args: EnvArgs | None = None
) -> NativeEnv | EnvSource:
    """Turn what the user gave into a `NativeEnv` or an `EnvSource`.

    `num_envs` is how many environments a seed steps; None means the number that a vector
    environment has, 1 for an instance, otherwise `default`. `env_args` are the keyword arguments of
    an environment that is given by its name.
    """
    args = arguments.check_env_args(env_args)
    if args and not isinstance(env, str):
        raise ConfigError(
            "env_args are for an environment that is given by its name: let your callable use "
            f"{arguments.show_env_args(args)}"
        )
    if num_envs is not None and num_envs < 1:
        raise ConfigError(f"num_envs must be at least 1, got {num_envs}")
    if isinstance(env, NativeEnv | EnvSource):
        return env
    if isinstance(env, str):
        return _from_string(env, num_envs or default, args)
    if isinstance(env, VectorEnv):
        return _from_vector(env, num_envs)
    if isinstance(env, gymnasium.Env):
        return _from_instance(env, num_envs or 1)
    if callable(env):
        return _from_factory(None, env, num_envs or default)
    raise EnvironmentError(f"cannot use {env!r} as an environment; accepted: {_ACCEPTED}")


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
    if source.kind == "envpool":
        raise EnvironmentError(
            f"frame_stack={count} cannot wrap EnvPool, which stacks frames itself: give env_args "
            f"stack_num={count} (--env-arg stack_num={count}), without episodic_life"
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


def without_environment(spec: Spec, why: str) -> EnvSource:
    """Return the source of an agent that can only act: it has a spec, but makes no environment."""

    def provide(rows: int, for_training: bool) -> Any:
        raise EnvironmentError(f"this agent has no environment and can only act: {why}")

    return EnvSource(None, spec, 1, provide)


def _from_string(name: str, num_envs: int, args: EnvArgs) -> NativeEnv | EnvSource:
    prefix, _, rest = name.partition(":")
    if prefix == "jax":
        return _native(rest, tuple(sorted(args.items())))
    if prefix == "brax":
        return importlib.import_module("understudy.envs.brax_envs").make_brax(rest, args)
    if prefix == "gymnax":
        return importlib.import_module("understudy.envs.gymnax_envs").make_gymnax(rest, args)
    if prefix == "envpool":
        task = importlib.import_module("understudy.envs.envpool_envs").read_task(rest, args)
        spec = spec_of(task.observation_space, task.action_space)
        return EnvSource(name, spec, num_envs, task.provide, "envpool", time_limit=task.time_limit)
    if prefix in ADAPTERS:
        raise EnvironmentError(
            f'"{name}": the {prefix} adapter is not part of this version yet; it will need '
            f'pip install "understudy[{prefix}]". Today: {_ACCEPTED}'
        )
    return _from_factory(name, gymnasium_factory(name, args), num_envs, args)


def gymnasium_factory(name: str, args: EnvArgs = NO_ARGS) -> Callable[[], gymnasium.Env]:
    """Return a callable that makes the environment `name`, in this process or in a worker."""
    if name.startswith("atari:"):
        return _atari(name, args)
    module, _, plain = name.rpartition(":")
    if module:  # "module:Class", or "module:ID": importing it registers the id
        own = getattr(_import(name, module), plain, None)
        # Only classes of environments: a name must not cause other things to be called.
        is_env = isinstance(own, type) and issubclass(own, gymnasium.Env)
        if own is not None and is_env and plain not in gymnasium.registry:
            return partial(own, **args) if args else own
    make = make_minatar if name.startswith("MinAtar/") else make_quietly
    return partial(make, _gymnasium_spec(name, plain), args)


def _import(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except FAILURES as error:
        problem = " ".join(describe_error(error).split())
        raise EnvironmentError(f'"{name}": importing {module} failed: {problem}') from error


def _atari(name: str, args: EnvArgs) -> AtariSettings:
    _register(name, "ALE")
    game = name.removeprefix("atari:")
    if f"ALE/{game}-v5" not in gymnasium.registry:
        ids = [known for known in gymnasium.registry if known.startswith("ALE/")]
        games = [known.removeprefix("ALE/").removesuffix("-v5") for known in ids]
        raise EnvironmentError(f'no Atari game "{game}"{did_you_mean(game, games, "atari:")}')
    arguments.check_fields(name, AtariSettings, args, hidden=("game",))
    return AtariSettings(game, **args)


def _register(name: str, group: str) -> None:
    """Register the environments of a group with Gymnasium."""
    package, extra = _ON_DEMAND[group]
    if importlib.util.find_spec(package) is None:
        raise missing_package(name, extra, hint_at_adapter(name))
    importlib.import_module(package)  # registers the games of ALE
    if group == "MinAtar" and not any(known.startswith(group) for known in gymnasium.registry):
        importlib.import_module("minatar.gym").register_envs()


@cache
def _native(name: str, args: tuple[tuple[str, Any], ...]) -> NativeEnv:
    """Make a native environment once: it has no state, so agents share it and compiled programs."""
    if name not in NATIVE:
        raise unknown_name("no native environment", name, sorted(NATIVE), "jax:")
    make, given = NATIVE[name], dict(args)
    if isinstance(make, type):
        arguments.check_fields(f"jax:{name}", make, given)
    else:
        arguments.refuse_env_args(f"jax:{name}", given, "it has no parameters")
    env = make(**given)
    if env.max_steps < 1:
        raise ConfigError(f"max_steps must be at least 1, got {env.max_steps}")
    return env


def _gymnasium_spec(name: str, plain: str) -> Any:
    """Return the registered spec. It, not the id, is sent to workers: they would not know an id
    that the user's own script has registered."""
    group = name.rpartition("/")[0]
    if plain not in gymnasium.registry and hint_at_adapter(plain):
        group = "ALE"  # the ids without that prefix, too
    if group in _ON_DEMAND:
        _register(name, group)
    hint = hint_at_adapter(plain)
    try:
        spec = gymnasium.spec(plain)
    except (gymnasium.error.Error, ValueError) as error:
        near = hint or did_you_mean(plain, gymnasium.registry)
        raise EnvironmentError(f'no environment "{name}"{near}') from error
    if hint:
        _log.warning('"%s" shows raw frames%s', name, hint)
    return spec


def _make_one(name: str | None, factory: Callable[[], Any], args: EnvArgs) -> gymnasium.Env:
    """Make one environment; an error says in one line why it cannot be made."""
    what = name or "the environment"
    try:
        env = factory()
    except EnvironmentError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        text = str(error).lower()
        for package, (word, extra) in _EXTRAS.items():
            if word in text and importlib.util.find_spec(package) is None:
                raise missing_package(name, extra) from error
        raise EnvironmentError(f"{what} cannot be made: {error}") from error
    except FAILURES as error:
        if args:
            problem = " ".join(describe_error(error).split())
            raise arguments.cannot_be_made(name, args, problem, factory) from error
        raise EnvironmentError(f"{what} cannot be made: {describe_error(error)}") from error
    if isinstance(env, VectorEnv) or not isinstance(env, gymnasium.Env):
        raise EnvironmentError(f"the callable must make a gymnasium.Env, it made {env!r}")
    return env


def _from_factory(
    name: str | None, factory: Callable[[], Any], num_envs: int, args: EnvArgs = NO_ARGS
) -> EnvSource:
    env = _make_one(name, factory, args)
    try:
        spec, limit = spec_of(env.observation_space, env.action_space), time_limit_of(env)
    finally:
        close_logged(env)
    evaluation = factory.for_evaluation() if hasattr(factory, "for_evaluation") else factory
    limit = factory.most_steps if isinstance(factory, AtariSettings) else limit
    provide = partial(_repeat_factory, factory, evaluation)
    return EnvSource(name, spec, num_envs, provide, time_limit=limit)


def _repeat_factory(
    training: Callable[[], Any], evaluation: Callable[[], Any], rows: int, for_training: bool
) -> tuple[Sequence[Callable[[], Any]], bool]:
    """Not a local function of `_from_factory`: other processes get it by its name."""
    return [training if for_training else evaluation] * rows, True


def _from_instance(env: gymnasium.Env, num_envs: int) -> EnvSource:
    if num_envs != 1:
        raise EnvironmentError(
            f"one environment cannot serve num_envs={num_envs}: give a callable that makes one"
        )
    spec, limit = spec_of(env.observation_space, env.action_space), time_limit_of(env)
    return EnvSource(None, spec, 1, partial(_copy_instance, env), "instance", time_limit=limit)


def _copy_instance(
    env: gymnasium.Env, rows: int, for_training: bool
) -> tuple[Sequence[Callable[[], Any]], bool]:
    if for_training and rows == 1:
        return [lambda: env], False
    return [partial(_another, env)] * rows, True


def _from_vector(env: VectorEnv, num_envs: int | None) -> EnvSource:
    if num_envs is not None and num_envs != env.num_envs:
        raise EnvironmentError(
            f"num_envs={num_envs}, but the vector environment has {env.num_envs}"
        )

    def provide(rows: int, for_training: bool) -> tuple[Any, bool]:
        if for_training and rows == env.num_envs:
            return env, False
        factories = getattr(env.unwrapped, "env_fns", None)
        if factories and env.unwrapped is env:
            # Vector wrappers would be lost this way; without them this fits any number.
            return [factories[row % len(factories)] for row in range(rows)], True
        if rows != env.num_envs:
            raise EnvironmentError(
                f"{rows} environments are needed and the vector environment has {env.num_envs}: "
                "give a callable that makes one environment"
            )
        return _another(env), True

    spec = spec_of(env.single_observation_space, env.single_action_space)
    return EnvSource(None, spec, env.num_envs, provide, "vector", time_limit=time_limit_of(env))


def _another(env: Any) -> Any:
    """Make a separate environment like `env`, in any state: it is reset before use."""
    try:
        return copy.deepcopy(env)
    except Exception as error:
        if getattr(env, "spec", None) is None:
            raise EnvironmentError(
                "evaluation (and more than one seed) needs environments of its own, and "
                f"{env} can be neither copied ({describe_error(error)}) nor made again "
                "(env.spec is None): give a callable that makes one"
            ) from error
        if isinstance(env, VectorEnv):
            return gymnasium.make_vec(env.spec)  # type: ignore[arg-type]
        return make_quietly(env.spec)
