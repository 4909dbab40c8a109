"""A conformance test that users can run on their own environments.

>>> print(understudy.envs.check("Pendulum-v1"))
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from understudy.envs.make import gymnasium_factory
from understudy.envs.rows import FAILURES, describe_error
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.spaces import spec_of, to_real
from understudy.observation_packing import Packer, can_cast, flat
from understudy.types import Continuous, Discrete, EnvironmentError, Spec

_STEPS = 200
_MARKS = {"problem": "✗", "note": "·", "good": "✓"}


class Finding(NamedTuple):
    """One result: `kind` is "good", "note" (tolerated, worth knowing) or "problem"."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"  {_MARKS[self.kind]} {self.text}"


@final
@dataclass(frozen=True)
class CheckReport:
    """The findings of `check`. `ok` says whether the environment can be trained on."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> list[str]:
        return [finding.text for finding in self.findings if finding.kind == "problem"]

    @property
    def notes(self) -> list[str]:
        return [finding.text for finding in self.findings if finding.kind == "note"]

    def __str__(self) -> str:
        verdict = "ok" if self.ok else f"{len(self.problems)} problem(s)"
        return "\n".join([f"{self.name}: {verdict}", *map(str, self.findings)])


class _Record(NamedTuple):
    """What a reset (without a reward) or a step returned, copied."""

    observation: dict[str, np.ndarray]  # entries by name; "" if there is only one
    reward: Any = None
    terminated: Any = None
    truncated: Any = None


def check(env: Any, steps: int = _STEPS) -> CheckReport:
    """Try an environment (an id, a callable that makes one, or an instance) and report.

    Never raises: any error is a finding. An instance is reset and stepped, not closed.
    """
    findings: list[Finding] = []
    made = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = _make(env)
            findings.extend(_examine(made, steps))
        except EnvironmentError as error:
            findings.append(Finding("problem", str(error)))
        except FAILURES as error:
            findings.append(Finding("problem", f"raised {describe_error(error)}"))
        try:
            if made is not None and made is not env:
                made.close()
        except FAILURES as error:
            findings.append(Finding("problem", f"close() raised {describe_error(error)}"))
    return CheckReport(_name(env, made), tuple(findings))


def _make(env: Any) -> gymnasium.Env:
    factory = gymnasium_factory(env) if isinstance(env, str) else env
    made = env if isinstance(env, gymnasium.Env) else factory()
    if isinstance(made, VectorEnv) or not isinstance(made, gymnasium.Env):
        raise EnvironmentError(f"expected a gymnasium.Env, got {type(made).__name__}")
    return made


def _name(env: Any, made: Any) -> str:
    if isinstance(env, str):
        return env
    spec = getattr(made, "spec", None)
    return spec.id if spec is not None else getattr(env, "__name__", type(env).__name__)


def _examine(env: gymnasium.Env, steps: int) -> Iterator[Finding]:
    spec = spec_of(env.observation_space, env.action_space)
    yield Finding("good", f"spaces are supported: {spec.observation}, {spec.action}")
    if isinstance(spec.action, Continuous) and not spec.action.bounded:
        yield Finding("note", "actions are unbounded: squashed policies refuse them")
    actions, packer = _random_actions(spec, steps), Packer(spec.observation)
    first, notes = _play(env, actions, packer)
    yield from notes
    second, _ = _play(env, actions, packer)
    yield from list(_observation_problems(env, first)) or [
        Finding("good", "observations match their space")
    ]
    yield from list(_result_problems(first)) or [
        Finding("good", "rewards are finite numbers, flags are bool")
    ]
    yield _compare(first, second)
    limit = getattr(env.spec, "max_episode_steps", None)
    if limit is None:
        yield Finding("note", "no declared time limit: fine if every episode ends by itself")
    else:
        yield Finding("good", f"time limit of {limit} steps")


def _random_actions(spec: Spec, steps: int) -> np.ndarray:
    """Draw real actions, the same at every call."""
    random = np.random.default_rng(0)
    if isinstance(spec.action, Continuous):
        return to_real(random.uniform(-1, 1, (steps, spec.action.size)).astype(np.float32), spec)
    if isinstance(spec.action, Discrete):
        return to_real(random.integers(spec.action.n, size=steps), spec)
    choices = spec.action.choices
    return to_real(random.integers(choices, size=(steps, len(choices))), spec)


def _play(
    env: gymnasium.Env, actions: np.ndarray, packer: Packer
) -> tuple[list[_Record], list[Finding]]:
    """Take these actions in seeded episodes; also returns notes about arrays."""
    seeds, episode, records = EpisodeSeeds(0), 0, []
    current, reuses, mutates = None, False, False  # the latest observation of an open episode
    for action in actions:
        if current is None:
            current = _reset(env, seeds(0, episode))
            records.append(_Record(_copied(current, packer)))
        given = action.copy()
        result = env.step(given)
        if not isinstance(result, tuple) or len(result) != 5:
            size = len(result) if isinstance(result, tuple) else type(result).__name__
            raise EnvironmentError(f"step() must return a tuple of 5, got {size}")
        observation, reward, terminated, truncated, _ = result
        reuses |= _share_an_array(observation, current)
        mutates |= not np.array_equal(given, action)
        records.append(_Record(_copied(observation, packer), reward, terminated, truncated))
        current = None if terminated or truncated else observation
        episode += current is None
    notes = []
    if reuses:
        notes.append(Finding("note", "returns the same array each step (copied here)"))
    if mutates:
        notes.append(Finding("note", "mutates the action it is given (it gets a copy here)"))
    return records, notes


def _copied(observation: Any, packer: Packer) -> dict[str, np.ndarray]:
    """Copy the entries; those of a Dict, and choices, must agree with their space."""
    if packer.has_parts or isinstance(observation, dict):
        packer.entries(observation)
    return {name: np.array(entry) for name, entry in flat(observation).items()}


def _share_an_array(one: Any, other: Any) -> bool:
    ours, theirs = flat(one), flat(other)
    return any(isinstance(e, np.ndarray) and e is theirs.get(name) for name, e in ours.items())


def _reset(env: gymnasium.Env, seed: int) -> Any:
    result = env.reset(seed=seed)
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvironmentError("reset(seed=...) must return (observation, info)")
    return result[0]


def _observation_problems(env: gymnasium.Env, records: list[_Record]) -> Iterator[Finding]:
    for name, space in flat(env.observation_space).items():
        if not isinstance(space, Box):
            continue
        what = f'observations of "{name}"' if name else "observations"
        seen = [record.observation[name] for record in records]
        shapes = {one.shape for one in seen}
        if shapes != {space.shape}:
            found = ", ".join(map(str, sorted(shapes)))
            yield Finding("problem", f"{what} of shape {found}, not {space.shape}")
            continue
        for dtype in sorted({one.dtype for one in seen} - {space.dtype}, key=str):
            kind = "note" if can_cast(dtype, space.dtype) else "problem"
            yield Finding(kind, f"{what} have dtype {dtype}, the space says {space.dtype}")
        stacked = np.stack(seen)
        if stacked.dtype.kind == "f" and not np.isfinite(stacked).all():
            yield Finding("problem", f"{what} contain NaN or infinity")
        elif ((stacked < space.low) | (stacked > space.high)).any():
            yield Finding("note", f"{what} leave the bounds of their space")


def _result_problems(records: list[_Record]) -> Iterator[Finding]:
    steps = [record for record in records if record.reward is not None]
    number = (int, float, np.integer, np.floating)
    odd = {type(step.reward).__name__ for step in steps if not isinstance(step.reward, number)}
    if odd:
        yield Finding("problem", f"rewards are {', '.join(sorted(odd))}, not numbers")
    elif not np.isfinite([float(step.reward) for step in steps]).all():
        yield Finding("problem", "rewards contain NaN or infinity")
    for name in ("terminated", "truncated"):
        flags = {type(getattr(step, name)) for step in steps} - {bool, np.bool_}
        if flags:
            kinds = ", ".join(sorted(flag.__name__ for flag in flags))
            yield Finding("problem", f"{name} is {kinds}, not bool")


def _compare(first: list[_Record], second: list[_Record]) -> Finding:
    """Resuming replays the open episode: that needs the same bits from the same seed."""
    if _bits(first[0]) != _bits(second[0]):
        text = "reset(seed) is not reproducible: does it use self.np_random, seeded by super()?"
        return Finding("problem", text)
    if list(map(_bits, first)) != list(map(_bits, second)):
        text = "the same seed and actions do not replay the same bits: a resumed run would differ"
        return Finding("problem", text)
    return Finding("good", "the same seed and actions replay bit for bit")


def _bits(record: _Record) -> tuple[Any, ...]:
    reward = None if record.reward is None else float(np.asarray(record.reward).ravel()[0])
    # NaN differs from itself; its text does not.
    seen = [(name, entry.tobytes()) for name, entry in record.observation.items()]
    return (seen, str(reward), record.terminated, record.truncated)
