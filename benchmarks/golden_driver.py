"""One training for golden.py, in a process of its own.

    python benchmarks/golden_driver.py JOB

JOB is a JSON object: the `definition` (golden_configs.py), the `aliases` of renamed names, the
`source` directory that `understudy` must come from, and the directory `out` for the results. The
driver uses the public API alone, so that it runs on older and newer commits.
"""

import dataclasses
import inspect
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

RUN = dict(log_every=100, evaluate_every=200, evaluation_episodes=2, checkpoint_every=0)
# One generation at a time: by default the clock decides how many the device does at once.
QD_RUN = dict(log_every=1, checkpoint_every=0, reevaluation_episodes=2)
SEED, SIDE = 3, 12


class Picture(gymnasium.Env):
    """A bright row moves over noise. Episodes have 3 to 39 steps."""

    observation_space: spaces.Space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space: spaces.Space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.row, self.left = 0, int(self.np_random.integers(3, 40))
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        done = float(np.sum(action))
        self.left -= 1
        self.row = (self.row + 1 + round(done)) % SIDE
        ended = self.left == 0
        terminated = ended and bool(self.np_random.integers(2))
        reward = 0.1 * self.row - abs(done)
        return self.look(), reward, terminated, ended and not terminated, {}

    def look(self) -> Any:
        image = self.np_random.integers(0, 50, (SIDE, SIDE)).astype(np.uint8)
        image[self.row] = 255
        return image


class Both(Picture):
    """An image beside a vector, and continuous actions."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
            "speed": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
    )
    action_space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32))

    def look(self) -> Any:
        speed = self.np_random.normal(size=2).astype(np.float32)
        return {"camera": super().look(), "speed": speed}


ENVIRONMENTS = {"Picture": Picture, "Both": Both}


def angle(env: Any, observation: np.ndarray) -> np.ndarray:
    """The cosine and sine of a pendulum."""
    return observation[:2]


class Names:
    """The public names of one tree, by their old names."""

    def __init__(self, package: Any, aliases: Mapping[str, str]):
        self._package, self._aliases = package, aliases

    def __getattr__(self, name: str) -> Any:
        known = hasattr(self._package, name)
        return getattr(self._package, name if known else self._aliases.get(name, name))

    def settings(self, target: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings under the names that the target knows."""
        if dataclasses.is_dataclass(target):
            known = {field.name for field in dataclasses.fields(target)}
        else:
            known = set(inspect.signature(target).parameters)
        return {
            name if name in known else self._aliases.get(name, name): value
            for name, value in given.items()
        }

    def make(self, target: Any, given: Mapping[str, Any]) -> Any:
        return target(**self.settings(target, given))


def start_ray() -> None:
    """Start a small Ray, which the library then uses."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=80_000_000,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )


def make_agent(us: Names, definition: Mapping[str, Any]) -> Any:
    method, env = definition["method"], definition["env"]
    prefix, _, own = env.partition(":")
    if prefix == "own":
        env = ENVIRONMENTS[own]
    kind = getattr(us, method)
    config_class = getattr(us, f"{method}Config")
    keywords = {"seed": SEED, **definition["agent"]}
    if definition["cluster"] is not None:
        start_ray()
        keywords["cluster"] = us.make(us.Cluster, definition["cluster"])
    if definition["own_descriptor"]:
        keywords["descriptor"] = us.Descriptor(angle, low=(-1.0, -1.0), high=(1.0, 1.0))
    config = us.make(config_class, definition["config"])
    return kind(env, config, **us.settings(kind, keywords))


def train(us: Names, agent: Any, definition: Mapping[str, Any], out: Path) -> Any:
    """Train, and return the agent that was trained last."""
    config = type(agent.config)
    curves = {
        name: getattr(us, curve)(*arguments)
        for name, (curve, *arguments) in definition["schedules"].items()
    }
    keywords = dict(run=us.make(us.RunConfig, RUN), run_dir=out / "run", progress=False)
    first = definition["resume_at"] or definition["steps"]
    agent.train(first, schedules=us.settings(config, curves) or None, **keywords)
    if first < definition["steps"]:
        agent.save(out / "half")
        agent.close()
        agent = us.load(out / "half")
        agent.train(definition["steps"] - first, **keywords)
    return agent


def illuminate(us: Names, found: Any, definition: Mapping[str, Any], out: Path) -> Any:
    run = us.make(us.QDRunConfig, QD_RUN)
    found.illuminate(definition["steps"], run=run, run_dir=out / "run", progress=False)
    return found


def main(job: Mapping[str, Any]) -> None:
    import understudy

    home = Path(str(understudy.__file__)).resolve()
    if not home.is_relative_to(Path(job["source"]).resolve()):
        raise SystemExit(f"understudy comes from {home}, not from {job['source']}")
    definition, out = job["definition"], Path(job["out"])
    us = Names(understudy, job["aliases"])
    agent = make_agent(us, definition)
    run = illuminate if hasattr(agent, "illuminate") else train
    agent = run(us, agent, definition, out)
    agent.save(out / "saved")
    agent.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
