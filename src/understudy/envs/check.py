"""A conformance test that users can run on their own environments.

>>> print(understudy.envs.check("Pendulum-v1"))
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from understudy.envs.make import gymnasium_factory
from understudy.envs.seeds import EpisodeSeeds
from understudy.envs.spaces import entries, spec_of, to_real
from understudy.observation_packing import Packer, castable, flat
from understudy.types import Continuous, Discrete, EnvironmentError, Spec

_STEPS = 200
_MARKS = {"problem": "✗", "note": "·", "good": "✓"}


@final
@dataclass(frozen=True)
class Finding:
    """One thing learnt: `kind` is "good", "note" (tolerated, worth knowing) or "problem"."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"  {_MARKS[self.kind]} {self.text}"


@final
@dataclass(frozen=True)
class CheckReport:
    """What `check` found. `ok` says whether the environment can be trained on."""

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


class _Moment(NamedTuple):
    """One step as the environment returned it, copied."""

    observation: dict[str, np.ndarray]  # entries by name; one without a name if there is only one
    reward: Any
    terminated: Any
    truncated: Any


def check(env: Any, steps: int = _STEPS) -> CheckReport:
    """Try an environment (an id, a callable that makes one, or an instance) and report.

    Never raises: whatever goes wrong is a finding. An instance is reset and stepped, not closed.
    """
    findings: list[Finding] = []
    owned = not isinstance(env, gymnasium.Env)
    made = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = _make(env)
            _examine(made, findings, steps)
        except EnvironmentError as error:
            findings.append(Finding("problem", str(error)))
        except Exception as error:
            findings.append(Finding("problem", f"raised {type(error).__name__}: {error}"))
        finally:
            if made is not None and owned:
                _close(made, findings)
    return CheckReport(_name(env, made), tuple(findings))


def _make(env: Any) -> gymnasium.Env:
    factory: Callable[[], Any] = gymnasium_factory(env) if isinstance(env, str) else env
    made = env if isinstance(env, gymnasium.Env) else factory()
    if isinstance(made, VectorEnv) or not isinstance(made, gymnasium.Env):
        raise EnvironmentError(f"expected a gymnasium.Env, got {type(made).__name__}")
    return made


def _name(env: Any, made: Any) -> str:
    if isinstance(env, str):
        return env
    spec = getattr(made, "spec", None)
    return spec.id if spec is not None else getattr(env, "__name__", type(env).__name__)


def _close(env: gymnasium.Env, findings: list[Finding]) -> None:
    try:
        env.close()
    except Exception as error:
        findings.append(Finding("problem", f"close() raised {type(error).__name__}: {error}"))


def _examine(env: gymnasium.Env, findings: list[Finding], steps: int) -> None:
    spec = spec_of(env.observation_space, env.action_space)
    findings.append(Finding("good", f"spaces are supported: {spec.observation}, {spec.action}"))
    if isinstance(spec.action, Continuous) and not spec.action.bounded:
        findings.append(Finding("note", "actions are unbounded: squashed policies refuse them"))
    seeds, actions = EpisodeSeeds(0), _actions(spec, steps)
    seen = Packer.of(spec.observation)
    first = _roll(env, seeds, actions, seen, findings)
    again = _roll(env, seeds, actions, seen, [])
    _look_at_observations(env, first, findings)
    _look_at_results(first, findings)
    _compare(first, again, findings)
    _look_for_time_limit(env, findings)


def _actions(spec: Spec, steps: int) -> np.ndarray:
    """Random real actions, the same at every call."""
    random = np.random.default_rng(0)
    if isinstance(spec.action, Continuous):
        return to_real(random.uniform(-1, 1, (steps, spec.action.size)).astype(np.float32), spec)
    if isinstance(spec.action, Discrete):
        return to_real(random.integers(spec.action.n, size=steps), spec)
    choices = spec.action.choices
    return to_real(random.integers(choices, size=(steps, len(choices))), spec)


def _roll(
    env: gymnasium.Env,
    seeds: EpisodeSeeds,
    actions: np.ndarray,
    seen: Packer,
    findings: list[Finding],
) -> list[_Moment]:
    """The seeded episodes that these actions lead through."""
    moments, episode, reuses, mutates = [], 0, False, False
    current = _reset(env, seeds(0, episode))
    moments.append(_Moment(_copied(current, seen), None, None, None))
    for action in actions:
        given = action.copy()
        result = env.step(given)
        if not isinstance(result, tuple) or len(result) != 5:
            size = len(result) if isinstance(result, tuple) else type(result).__name__
            raise EnvironmentError(f"step() must return a tuple of 5, got {size}")
        observation, reward, terminated, truncated, _ = result
        reuses |= _share(observation, current)
        mutates |= not np.array_equal(given, action)
        current = observation
        moments.append(_Moment(_copied(observation, seen), reward, terminated, truncated))
        if terminated or truncated:
            episode += 1
            current = _reset(env, seeds(0, episode))
            moments.append(_Moment(_copied(current, seen), None, None, None))
    if reuses:
        findings.append(Finding("note", "returns the same array each step (copied here)"))
    if mutates:
        findings.append(Finding("note", "mutates the action it is given (it gets a copy here)"))
    return moments


def _copied(observation: Any, seen: Packer) -> dict[str, np.ndarray]:
    """Its entries; those of a Dict, and choices, must be what their space says."""
    if seen.has_parts or isinstance(observation, dict):
        seen.entries(observation)
    return {name: np.array(entry) for name, entry in flat(observation).items()}


def _share(one: Any, other: Any) -> bool:
    ours, theirs = flat(one), flat(other)
    return any(isinstance(e, np.ndarray) and e is theirs.get(name) for name, e in ours.items())


def _reset(env: gymnasium.Env, seed: int) -> Any:
    result = env.reset(seed=seed)
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvironmentError("reset(seed=...) must return (observation, info)")
    return result[0]


def _look_at_observations(
    env: gymnasium.Env, moments: list[_Moment], findings: list[Finding]
) -> None:
    before = len(findings)
    for name, space in entries(env.observation_space):
        if isinstance(space, Box):
            seen = [moment.observation[name] for moment in moments]
            _look_at_entry(
                f'observations of "{name}"' if name else "observations", space, seen, findings
            )
    if len(findings) == before:
        findings.append(Finding("good", "observations match their space"))


def _look_at_entry(what: str, space: Box, seen: list[np.ndarray], findings: list[Finding]) -> None:
    shapes = {one.shape for one in seen}
    if shapes != {space.shape}:
        found = ", ".join(map(str, sorted(shapes)))
        findings.append(Finding("problem", f"{what} of shape {found}, not {space.shape}"))
        return
    for dtype in sorted({one.dtype for one in seen} - {space.dtype}, key=str):
        fits = castable(dtype, space.dtype)
        text = f"{what} have dtype {dtype}, the space says {space.dtype}"
        findings.append(Finding("note" if fits else "problem", text))
    stacked = np.stack(seen)
    if stacked.dtype.kind == "f" and not np.isfinite(stacked).all():
        findings.append(Finding("problem", f"{what} contain NaN or infinity"))
    elif ((stacked < space.low) | (stacked > space.high)).any():
        findings.append(Finding("note", f"{what} leave the bounds of their space"))


def _look_at_results(moments: list[_Moment], findings: list[Finding]) -> None:
    steps, before = [moment for moment in moments if moment.reward is not None], len(findings)
    number = (int, float, np.integer, np.floating)
    odd = {type(step.reward).__name__ for step in steps if not isinstance(step.reward, number)}
    if odd:
        findings.append(Finding("problem", f"rewards are {', '.join(sorted(odd))}, not numbers"))
    elif not np.isfinite([float(step.reward) for step in steps]).all():
        findings.append(Finding("problem", "rewards contain NaN or infinity"))
    for name in ("terminated", "truncated"):
        flags = {type(getattr(step, name)) for step in steps} - {bool, np.bool_}
        if flags:
            kinds = ", ".join(sorted(flag.__name__ for flag in flags))
            findings.append(Finding("problem", f"{name} is {kinds}, not bool"))
    if len(findings) == before:
        findings.append(Finding("good", "rewards are finite numbers, flags are bool"))


def _compare(first: list[_Moment], again: list[_Moment], findings: list[Finding]) -> None:
    """Resuming replays the open episode: that needs the same bits from the same seed."""
    if _bits(first[0]) != _bits(again[0]):
        text = "reset(seed) is not reproducible: does it use self.np_random, seeded by super()?"
        findings.append(Finding("problem", text))
    elif len(first) != len(again) or any(
        _bits(one) != _bits(other) for one, other in zip(first, again, strict=True)
    ):
        text = "the same seed and actions do not replay the same bits: a resumed run would differ"
        findings.append(Finding("problem", text))
    else:
        findings.append(Finding("good", "the same seed and actions replay bit for bit"))


def _bits(moment: _Moment) -> tuple[Any, ...]:
    reward = None if moment.reward is None else float(np.asarray(moment.reward).ravel()[0])
    # NaN differs from itself; its text does not.
    seen = [(name, entry.tobytes()) for name, entry in moment.observation.items()]
    return (seen, str(reward), moment.terminated, moment.truncated)


def _look_for_time_limit(env: gymnasium.Env, findings: list[Finding]) -> None:
    limit = getattr(env.spec, "max_episode_steps", None)
    if limit is None:
        text = "no declared time limit: fine if every episode ends by itself"
        findings.append(Finding("note", text))
    else:
        findings.append(Finding("good", f"time limit of {limit} steps"))
