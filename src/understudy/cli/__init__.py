"""The command `understudy`.

Flags are made from the config's fields, so the command line never lags behind the library. Any
mistake of the user's is answered with one line and exit code 2.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from understudy.types import ConfigError, UnderstudyError

DEFAULT_ALGORITHM, DEFAULT_ENVIRONMENT = "sac", "Pendulum-v1"
DEFAULT_STEPS, DEFAULT_STEPS_ELSEWHERE = 10_000, 1_000_000
FINAL_EPISODES = 20


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; exits 0, or 2 with one line on the error stream, or 130 on Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parse(arguments)
        options.command(options)
    except UnderstudyError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("understudy: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _fail(message: str) -> NoReturn:
    print(f"understudy: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line that name the nearest flag."""

    def __init__(self, **settings: Any):
        super().__init__(allow_abbrev=False, formatter_class=_Help, **settings)
        self.refused: Mapping[str, str] = {}  # settings that cannot be, and why

    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see {self.prog} --help)")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        from understudy.algorithms.settings import nearest

        options, unknown = self.parse_known_args(arguments)
        if unknown:
            flag = unknown[0].split("=")[0]
            setting = flag.removeprefix("--").replace("-", "_")
            if setting in self.refused:
                _fail(f"there is no {flag} here: {self.refused[setting]}")
            what = "flag" if flag.startswith("-") else "argument"
            hint = nearest(flag, self._option_string_actions) if what == "flag" else ""
            _fail(f"unknown {what} {flag}{hint} (see {self.prog} --help)")
        return options


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32, width=100)


def _parse(arguments: list[str]) -> argparse.Namespace:
    commands = {"train": _train_parser, "eval": _eval_parser, "list": _list_parser}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        raise SystemExit(0)
    if arguments[0] == "--version":
        from understudy import __version__

        print(f"understudy {__version__}")
        raise SystemExit(0)
    name, *rest = arguments
    if name not in commands:
        from understudy.algorithms.settings import nearest

        known = ", ".join(commands)
        _fail(f"unknown command '{name}'{nearest(name, commands)}; there are: {known}")
    return commands[name](rest).parse(rest)


def _overview() -> str:
    default = f"{DEFAULT_ALGORITHM} on {DEFAULT_ENVIRONMENT}"
    return f"""Understudy: actor-critic reinforcement learning on one JAX engine.

  understudy train [ALGO] [ENV] [flags]    train an agent (alone: {default})
  understudy eval RUN [flags]              play a trained agent and report its returns
  understudy list [algorithms|envs|presets]

  understudy train td3 HalfCheetah-v5 --steps 100000 --seeds 4
  understudy train sac jax:Pendulum-v1 --steps 100000 --seeds 16
  understudy eval runs/sac-Pendulum-v1 --episodes 20 --json

Each command explains its flags with --help."""


def _train_parser(arguments: list[str]) -> _Parser:
    """Its flags depend on the algorithm, which is looked up among the arguments first."""
    from understudy.algorithms import available, find
    from understudy.algorithms.settings import field_docs

    named = [word for word in arguments if word.lower() in available()]
    algorithm = find(named[0] if named else DEFAULT_ALGORITHM)
    parser = _Parser(
        prog="understudy train",
        usage="understudy train [ALGO] [ENV] [flags]",
        description="Train an agent; keep its log, learning curve and checkpoints in a directory.",
    )
    parser.set_defaults(command=_train)
    parser.refused = algorithm.config_class.refused
    add = parser.add_argument
    add("algorithm", nargs="?", default=DEFAULT_ALGORITHM, metavar="ALGO",
        help=f"one of {', '.join(available())} (default: {DEFAULT_ALGORITHM})")  # fmt: skip
    add("env", nargs="?", default=DEFAULT_ENVIRONMENT, metavar="ENV",
        help=f'a Gymnasium id, or "jax:ID" (default: {DEFAULT_ENVIRONMENT})')  # fmt: skip
    add("--steps", type=_count, metavar="N", help="environment steps in all, per seed")
    add("--seed", type=int, default=0, metavar="S", help="the first seed (default: 0)")
    add("--seeds", type=_count, default=1, metavar="K", help="train K seeds in one program")
    add("--envs", type=_count, metavar="N",
        help=f"environments per seed (default: {algorithm.num_envs})")  # fmt: skip
    add("--env-workers", type=_whole, default=0, metavar="W",
        help="worker processes that step the environments (default: 0, this process)")  # fmt: skip
    add("--run", type=Path, metavar="DIR", help="run directory (default: a new one in runs/)")
    add("--device", choices=("cpu", "gpu"), help="where to compute (default: JAX's choice)")
    add("--log-every", type=_count, metavar="N", help="steps between rows of the log")
    add("--evaluate-every", type=_count, metavar="N", help="steps between evaluations")
    add("--quiet", action="store_true", help="no progress bar")
    group = parser.add_argument_group(f"settings of {algorithm.name.upper()}")
    docs = field_docs(algorithm.config_class)
    for field in dataclasses.fields(algorithm.config_class):  # type: ignore[arg-type]
        flag = "--" + field.name.replace("_", "-")
        shown = docs[field.name].replace("%", "%%").rstrip(".")
        default = "" if field.default is None else f" (default: {_show(field.default)})"
        group.add_argument(
            flag, dest=f"field:{field.name}", type=_value, metavar="X", help=shown + default
        )
    return parser


def _eval_parser(arguments: list[str]) -> _Parser:
    parser = _Parser(
        prog="understudy eval",
        description="Play a trained agent deterministically and report its returns.",
    )
    parser.set_defaults(command=_eval)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run or checkpoint directory")
    parser.add_argument("--episodes", type=_count, default=10, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--device", choices=("cpu", "gpu"))
    return parser


def _list_parser(arguments: list[str]) -> _Parser:
    parser = _Parser(prog="understudy list", description="What there is.")
    parser.set_defaults(command=_list)
    what = ("algorithms", "envs", "presets")
    parser.add_argument("what", nargs="?", choices=what, default="algorithms")
    return parser


def _count(text: str) -> int:
    return _whole(text, at_least=1)


def _whole(text: str, at_least: int = 0) -> int:
    """A whole number, which may be written 1e6."""
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    if number < at_least or not number.is_integer():
        problem = f"must be a whole number of at least {at_least}, got '{text}'"
        raise argparse.ArgumentTypeError(problem)
    return int(number)


def _value(text: str) -> Any:
    """A flag's text as Python would have it: number, true/false, none, a,b,c or a word."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return tuple(_value(part) for part in text.strip(",").split(","))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _show(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _config(options: argparse.Namespace, config_class: Any) -> tuple[Any, str]:
    """The environment's preset, with the flags' settings on top; and what to call it."""
    given = {
        name.removeprefix("field:"): value
        for name, value in vars(options).items()
        if name.startswith("field:") and value is not None
    }
    for name in ("hidden_sizes", "actor_hidden_sizes", "critic_hidden_sizes"):
        if isinstance(given.get(name), int):
            given[name] = (given[name],)
    config, preset = config_class.for_environment(options.env)
    if given:
        settings = dataclasses.asdict(config) | given
        config, preset = config_class(**settings), f"{preset} and your flags"
    return config, preset


def _train(options: argparse.Namespace) -> None:
    from understudy.agent import agent_class
    from understudy.runs.run import RunConfig

    kind = agent_class(options.algorithm)
    config, preset = _config(options, kind.algorithm_class.config_class)
    familiar = options.env == DEFAULT_ENVIRONMENT
    steps = options.steps or (DEFAULT_STEPS if familiar else DEFAULT_STEPS_ELSEWHERE)
    agent = kind(
        options.env,
        config,
        seed=options.seed,
        num_seeds=options.seeds,
        num_envs=options.envs,
        env_workers=options.env_workers,
        device=options.device,
    )
    agent.preset = preset
    run_dir = _run_directory(options, agent.algorithm.name)
    seeds = (
        f", seeds {options.seed}–{options.seed + options.seeds - 1}" if options.seeds > 1 else ""
    )
    print(f"{agent.name} on {options.env}, {steps:,} steps{seeds}, preset: {preset}")
    evaluate_every = options.evaluate_every or max(1_000, steps // 20)
    run = RunConfig(log_every=options.log_every or 1_000, evaluate_every=evaluate_every)
    try:
        summary = agent.train(steps, run=run, run_dir=run_dir, progress=not options.quiet)
        result = agent.evaluate(FINAL_EPISODES)
    finally:
        agent.close()
    low, high = result["ci95"]
    rate = summary.steps / summary.seconds
    print(f"trained in {summary.seconds:.1f} s ({rate:,.0f} steps/s{_each(options.seeds)})")
    print(
        f"return over {FINAL_EPISODES} episodes{_each(options.seeds)}: "
        f"{result['mean']:.1f} ± {result['std']:.1f} (95 % interval {low:.1f} … {high:.1f})"
    )
    print(f"learning curve  {run_dir / 'learning_curve.png'}")
    print(f"checkpoint      {run_dir / 'checkpoint'}")


def _each(seeds: int) -> str:
    return " per seed" if seeds > 1 else ""


def _run_directory(options: argparse.Namespace, algorithm: str) -> Path:
    """The one asked for, which must be new; or a new one named after what is run."""
    if options.run is not None:
        if options.run.is_dir() and any(options.run.iterdir()):
            raise ConfigError(f"{options.run} is not empty: choose another --run")
        return _made(options.run)
    env = options.env.replace(":", "-").replace("/", "-")
    stem = f"{algorithm}-{env}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory, copies = Path("runs") / stem, 1
    while directory.exists():
        copies += 1
        directory = Path("runs") / f"{stem}-{copies}"
    return _made(directory)


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error
    return directory


def _eval(options: argparse.Namespace) -> None:
    from understudy.agent import load

    agent = load(options.run, device=options.device)
    try:
        result = agent.evaluate(options.episodes)
    finally:
        agent.close()
    if options.json:
        print(json.dumps(result))
        return
    low, high = result["ci95"]
    print(f"{agent!r}")
    print(
        f"return over {options.episodes} episodes{_each(agent.num_seeds)}: "
        f"{result['mean']:.1f} ± {result['std']:.1f}, IQM {result['iqm']:.1f}, "
        f"95 % interval {low:.1f} … {high:.1f}"
    )


def _list(options: argparse.Namespace) -> None:
    from understudy.algorithms import available

    if options.what == "algorithms":
        for name, algorithm in available().items():
            print(f"{name:8} {(algorithm.__doc__ or '').strip().splitlines()[0]}")
    elif options.what == "presets":
        for name, algorithm in available().items():
            for env, preset in algorithm.config_class.presets.items():
                changes = ", ".join(f"{key}={_show(value)}" for key, value in preset.items())
                print(f"{name:8} {env:24} {changes}")
    else:
        import gymnasium

        from understudy.envs.native import NATIVE

        for env in NATIVE:
            print(f"jax:{env}")
        for env in sorted(gymnasium.registry):
            if "/" not in env:
                print(env)


if __name__ == "__main__":
    main()
