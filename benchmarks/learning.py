"""Measure how well an algorithm learns: K seeds in one program, all evaluations as raw CSV.

    python benchmarks/learning.py sac HalfCheetah-v5 --steps 100000 --seeds 3
    python benchmarks/learning.py ddqn CartPole-v1 --steps 50000 --set prioritized=true --tag per

Settings are the environment's preset, except for those that --set changes. Rows of kind "training"
are evaluations during training; rows of kind "final" evaluate the last policy over more episodes.
Wall seconds run from the first step and include the evaluations before, and compilation unless
--compile-first is given: then an agent that is discarded compiles everything. Works from a checkout
too: PYTHONPATH=src.
"""

import argparse
import ast
import csv
import dataclasses
import time
from pathlib import Path
from typing import Any, TextIO

import jax

import understudy as us
from understudy.agent import agent_class
from understudy.algorithms import available

COLUMNS = ("algorithm", "env", "seed", "steps", "kind", "episodes", "mean_return", "wall_seconds")


class Evaluations:
    """A callback that prints each evaluation and keeps it, a row per seed."""

    def __init__(self, options: argparse.Namespace, file: TextIO):
        self._options, self._file = options, file
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow(COLUMNS)

    def __call__(self, facts: dict[str, Any]) -> None:
        if "eval/mean_reward" not in facts:
            return
        means = facts.get("eval/mean_reward_per_seed", [facts["eval/mean_reward"]])
        steps, seconds = facts["time/total_steps"], facts["time/time_elapsed"]
        self.keep("training", steps, self._options.episodes, means, seconds)

    def keep(
        self, kind: str, steps: int, episodes: int, means: list[float], seconds: float
    ) -> None:
        options = self._options
        for seed, mean in enumerate(means, start=options.seed):
            row = [options.algorithm, options.env, seed, steps, kind, episodes]
            self._writer.writerow([*row, f"{mean:.3f}", f"{seconds:.2f}"])
        self._file.flush()  # a run that is cut off leaves what it had
        each = " ".join(f"{mean:.1f}" for mean in means)
        average = sum(means) / len(means)
        print(
            f"{kind} {steps:>9,} steps {seconds:8.1f} s  mean {average:9.1f}  [{each}]", flush=True
        )


def change(text: str) -> tuple[str, Any]:
    """A field and its value, written field=value: a number, true, false, none, a,b,c or a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be field=value, got '{text}'")
    words = {"true": True, "false": False, "none": None}
    try:
        return name, words[value] if value in words else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def make_agent(options: argparse.Namespace) -> us.Agent:
    """With the environment's preset, and the changes that are asked for."""
    kind = agent_class(options.algorithm)
    config_class = kind.algorithm_class.config_class
    config, preset = config_class.preset(options.env), config_class.preset_name(options.env)
    agent = kind(
        options.env,
        dataclasses.replace(config, **dict(options.set)),
        seed=options.seed,
        num_seeds=options.seeds,
        num_envs=options.envs,
        device=options.device,
    )
    agent.preset = f"{preset} and changes" if options.set else preset
    return agent


def differences(config: Any) -> str:
    """The settings that are not the algorithm's defaults."""
    defaults = dataclasses.asdict(type(config)())
    own = {k: v for k, v in dataclasses.asdict(config).items() if v != defaults[k]}
    return ", ".join(f"{name}={value}" for name, value in own.items()) or "none"


def compile_first(options: argparse.Namespace) -> None:
    """Train and evaluate an agent shortly: the next one finds its programs compiled."""
    agent = make_agent(options)
    # More than a program of the device loop, and no multiple of it: it has one for what is left.
    steps = max(300, 3 * getattr(agent.config, "horizon", 1) + 1) * agent.num_envs
    run = us.RunConfig(evaluation_episodes=options.episodes)
    try:
        agent.train(steps, run=run, progress=False)
        agent.evaluate(options.final_episodes)
    finally:
        agent.close()


def train(options: argparse.Namespace, path: Path) -> str:
    """Train, evaluate and write; gives the summary to print."""
    if options.compile_first:
        compile_first(options)
    agent = make_agent(options)
    run = us.RunConfig(evaluate_every=options.evaluate_every, evaluation_episodes=options.episodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        evaluations = Evaluations(options, file)
        try:
            summary = agent.train(options.steps, run=run, callbacks=(evaluations,), progress=False)
            began = time.perf_counter()
            returns = agent.evaluate(options.final_episodes)["returns"]
        finally:
            agent.close()
        by_seed = returns if options.seeds > 1 else [returns]
        means = [sum(episodes) / len(episodes) for episodes in by_seed]
        seconds = summary.seconds + time.perf_counter() - began
        evaluations.keep("final", agent.steps, options.final_episodes, means, seconds)
    return summarize(options, agent, means, summary.seconds)


def summarize(
    options: argparse.Namespace, agent: us.Agent, means: list[float], seconds: float
) -> str:
    device = jax.devices(options.device)[0]
    precision = jax.config.jax_default_matmul_precision or "default"
    rate = agent.steps / seconds
    compilation = "" if options.compile_first else " and compilation"
    rows = {
        "run": f"{agent.name} on {options.env}, {agent.steps:,} steps, preset: {agent.preset}",
        "not defaults": differences(agent.config),
        "seeds": f"{options.seed}–{options.seed + options.seeds - 1}, {agent.num_envs} env(s) each",
        "mean over seeds": f"{sum(means) / len(means):.1f}",
        "per seed": ", ".join(f"{mean:.1f}" for mean in means),
        "evaluation": f"{options.final_episodes} episodes a seed, last policy, deterministic",
        "wall time": f"{seconds:.1f} s with evaluations{compilation} ({rate:,.0f} steps/s a seed)",
        "device": f"{device.device_kind}, jax {jax.__version__}, matmul precision {precision}",
    }
    return "\n".join(f"| {name:15} | {value} |" for name, value in rows.items())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("algorithm", type=str.lower, choices=tuple(available()), metavar="ALGO")
    add("env", metavar="ENV", help='a Gymnasium id, or "jax:ID"')
    add("--steps", type=int, required=True, help="environment steps per seed")
    add("--seeds", type=int, default=1, help="how many, all in one program")
    add("--seed", type=int, default=0, help="the first seed")
    add("--envs", type=int, help="environments per seed (default: the algorithm's own number)")
    add("--set", type=change, action="append", default=[], metavar="FIELD=VALUE",
        help="change a setting of the preset; may be repeated")  # fmt: skip
    add("--tag", help="goes into the file's name, for another run on the same environment")
    add("--evaluate-every", type=int, help="steps (default: a twentieth of all)")
    add("--episodes", type=int, default=10, help="episodes per evaluation on the way")
    add("--final-episodes", type=int, default=20, help="episodes of the last evaluation")
    add("--device", choices=("cpu", "gpu"))
    add("--compile-first", action="store_true", help="leave compilation out of the wall seconds")
    add("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    options = parser.parse_args()
    options.evaluate_every = options.evaluate_every or max(1, options.steps // 20)
    return options


def main() -> None:
    options = parse()
    env = options.env.replace(":", "-").replace("/", "-")
    name = "_".join(["learning", options.algorithm, env, *([options.tag] if options.tag else [])])
    path = options.results / f"{name}.csv"
    try:
        print(train(options, path))
    except us.UnderstudyError as error:
        raise SystemExit(f"learning.py: {error}") from None
    print(f"written to {path}")


if __name__ == "__main__":
    main()
