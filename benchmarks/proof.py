"""Run a matrix of algorithms and tasks, ten seeds each, in pieces of any length.

    python benchmarks/proof.py run --minutes 10      # the next rows that are missing
    python benchmarks/proof.py status                # done, partial, missing
    python benchmarks/proof.py report                # results/proof/README.md and figures

Rows are run in the order of proof_rows.py, with the library's presets. --matrix pilot runs the
comparison of all recipes instead, in results/pilot. `run` stops when the minutes are over, on
Ctrl-C and on SIGTERM, each with a checkpoint; the next `run` continues bit for bit. After kill -9
it continues from the last checkpoint. The minutes end training; the checkpoint that follows, and an
evaluation which the library makes at a stop, may take another minute.

Evaluations go to results/proof/{method}_{env}.csv, the settings to the JSON file beside it. A
row whose settings differ from the present preset is refused; with --restart it starts afresh.

The folder --work holds the run directories and a copy of their evaluations. Seeds of a program
train at once. Of each program one checkpoint is kept, and two exist while one is written. It holds
all replay: per seed 166 MB on HalfCheetah-v5 and 878 MB on Ant-v5 at a million steps. A checkpoint
is therefore written at stops and every --checkpoint-minutes only, at the next evaluation or after
twice that time. A program that is complete loses its checkpoint. Where replay is kept
(`replay_storage`) stays "auto". --seeds-per-program is for machines with less memory; programs that
have begun keep their seeds. --first-seeds 5 begins programs of the first five seeds of a row only.

Rows can run beside each other: start the command several times. A process leaves out rows that
another one runs. On a GPU that several processes share, start NVIDIA's MPS daemon first, and set
XLA_PYTHON_CLIENT_PREALLOCATE=false. Four trainings of SAC kept an H200 busy. A process that steps
five MuJoCo environments itself is busy with that most of the time: give it --env-workers 5 where
there are cores.

--steps ends a row earlier. It is then the beginning of the full run, stays partial, and goes on
without --steps. Works from a checkout too: PYTHONPATH=src.
"""

import argparse
import gc
import json
import re
import shutil
import time
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from proof_report import (
    FINAL,
    TRAINING,
    Table,
    changes,
    finished,
    origin,
    read,
    report,
    settings,
    standing,
    write,
)
from proof_rows import MATRICES, Matrix, Row

import understudy as us
from understudy.agent import agent_class
from understudy.runs import checkpoint
from understudy.runs.files import lock_file, write_whole

HERE = Path(__file__).resolve().parent
LOG_EVERY = 500  # steps between looks at the clock
LINES, SETTINGS, RUN = "evaluations.csv", "settings.json", "run"  # in the work folder


class Program(NamedTuple):
    """Seeds of a row that train at once."""

    row: Row
    seeds: tuple[int, ...]  # without gaps
    place: Path  # in the work folder

    @property
    def title(self) -> str:
        return f"{self.row.title}, seeds {self.seeds[0]}–{self.seeds[-1]}"

    def publish(self, results: Path, own: Table) -> None:
        """Replace what the results hold of these seeds."""
        path = self.row.csv(results)
        others = {key: line for key, line in read(path).items() if key[0] not in self.seeds}
        write(path, others | own)


@final
class Clock:
    """When to stop: for good, and for a checkpoint."""

    def __init__(self, minutes: float | None, checkpoint_minutes: float):
        self._end = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        self._between = 60 * checkpoint_minutes
        self.saved()

    def saved(self) -> None:
        self._saved = time.monotonic()

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end

    def checkpoint_due(self, evaluated: bool) -> bool:
        """Preferably after an evaluation: elsewhere the library evaluates before it stops."""
        age = time.monotonic() - self._saved
        return age > (self._between if evaluated else 2 * self._between)


@final
class Watch:
    """A callback that writes the evaluations of a program, and stops when something is due."""

    def __init__(self, program: Program, num_envs: int, options: argparse.Namespace, clock: Clock):
        self.program, self._num_envs = program, num_envs
        self._results, self._clock = options.results, clock
        self._origin, self._own = origin(options.commit), read(program.place / LINES)
        self.limit = min(program.row.steps, options.steps or program.row.steps)

    def __call__(self, facts: dict[str, Any]) -> bool:
        row, steps = self.program.row, facts["time/total_steps"]
        evaluated = "eval/mean_reward" in facts
        # Evaluations at a stop are left out: a run without interruptions does not have them.
        planned = steps % row.evaluate_every < self._num_envs or steps >= row.steps
        if evaluated and planned:
            means = facts.get("eval/mean_reward_per_seed", [facts["eval/mean_reward"]])
            self.keep(TRAINING, steps, row.episodes, means, f"{facts['time/time_elapsed']:.2f}")
        done = self.limit <= steps < row.steps
        return done or self._clock.over or self._clock.checkpoint_due(evaluated)

    def keep(self, kind: str, steps: int, episodes: int, means: list[float], seconds: str) -> None:
        row, seeds = self.program.row, self.program.seeds
        for seed, mean in zip(seeds, means, strict=True):
            values = (row.method, row.env, seed, steps, kind, episodes, mean, seconds)
            names = ("algorithm", "env", "seed", "steps", "kind", "episodes", "mean_return",
                     "wall_seconds")  # fmt: skip
            line = {name: str(value) for name, value in zip(names, values, strict=True)}
            self._own[seed, steps, kind] = (
                line | {"seeds_in_program": str(len(seeds))} | self._origin
            )
        write(self.program.place / LINES, self._own)
        self.program.publish(self._results, self._own)
        each = " ".join(f"{mean:.1f}" for mean in means)
        print(f"{kind} {steps:>9,} steps {seconds:>9} s  mean {np.mean(means):9.1f}  [{each}]",
              flush=True)  # fmt: skip

    def seconds_at(self, steps: int) -> str:
        """Of training up to an evaluation there."""
        return self._own[self.program.seeds[0], steps, TRAINING]["wall_seconds"]


# -- settings -----------------------------------------------------------------------------------


def stored_settings(row: Row, options: argparse.Namespace) -> tuple[Path, Path]:
    return options.results / f"{row.name}.json", options.work / row.name / SETTINGS


def check_settings(rows: list[Row], options: argparse.Namespace) -> None:
    """Refuse rows that began with other settings."""
    found = {row.title: _changes(row, options) for row in rows}
    problems = [f"{title}: {'; '.join(each)}" for title, each in found.items() if each]
    if problems:
        listed = "\n  ".join(problems)
        raise us.UnderstudyError(
            f"stored results were made with other settings:\n  {listed}\n"
            "Restore these settings, leave the rows out with --only, or start them afresh with "
            "--restart, which deletes their results."
        )


def restart(row: Row, options: argparse.Namespace) -> None:
    """Remove what a row left that began with other settings."""
    if found := _changes(row, options):
        print(f"{row.title} starts afresh: {'; '.join(found)}")
        shutil.rmtree(options.work / row.name, ignore_errors=True)
        for path in (row.csv(options.results), *stored_settings(row, options)):
            path.unlink(missing_ok=True)


def _changes(row: Row, options: argparse.Namespace) -> list[str]:
    paths = stored_settings(row, options)
    return list(dict.fromkeys(change for path in paths for change in changes(row, path)))


# -- run ----------------------------------------------------------------------------------------


def programs(row: Row, options: argparse.Namespace) -> list[Program]:
    """Those that have begun, then the seeds that are left, as far as they are not complete."""
    folder, done = options.work / row.name, finished(row, read(row.csv(options.results)))
    wanted = set(row.seeds[: options.first_seeds])
    begun = []
    for place in sorted(folder.glob("seeds*-*")):
        if found := re.fullmatch(r"seeds(\d+)-(\d+)", place.name):
            begun.append(tuple(range(int(found[1]), int(found[2]) + 1)))
    begun = [seeds for seeds in begun if set(seeds) <= set(row.seeds)]
    covered = {seed for seeds in begun for seed in seeds}
    left = sorted(wanted - covered - done)
    chunks = []
    for _, run in groupby(enumerate(left), key=lambda item: item[1] - item[0]):
        seeds = [seed for _, seed in run]
        size = options.seeds_per_program
        chunks += [tuple(seeds[i : i + size]) for i in range(0, len(seeds), size)]
    return [
        Program(row, seeds, folder / f"seeds{seeds[0]}-{seeds[-1]}")
        for seeds in [*begun, *chunks]
        if wanted.intersection(seeds) - done
    ]


def make_agent(program: Program, options: argparse.Namespace) -> us.Agent:
    """Where the last checkpoint left it, or new."""
    run_dir, row = program.place / RUN, program.row
    if checkpoint.candidates(run_dir):
        return us.load(run_dir)
    shutil.rmtree(run_dir, ignore_errors=True)  # a run that ended before its first checkpoint
    (program.place / LINES).unlink(missing_ok=True)
    if set(program.seeds) & {seed for seed, *_ in read(row.csv(options.results))}:
        print(f"{program.title}: the results hold evaluations, but {program.place} holds no "
              "checkpoint to go on from. The program starts afresh and replaces them.")  # fmt: skip
    recipe = {"recipe": row.recipe} if row.recipe else {}
    return agent_class(row.algorithm)(
        row.env,
        **recipe,
        seed=program.seeds[0],
        num_seeds=len(program.seeds),
        num_envs=row.num_envs,
        env_workers=options.env_workers,
    )


def run_program(program: Program, options: argparse.Namespace, clock: Clock) -> None:
    """Train until the program is complete, or until a stop; then evaluate the last policy."""
    row, place = program.row, program.place
    own = read(place / LINES)
    if own:  # the results may have been moved away, or come from an earlier commit
        program.publish(options.results, own)
    limit, saved = options.steps or row.steps, checkpoint.numbered(place / RUN)
    short = limit < row.steps and bool(saved) and int(saved[-1].name) >= limit
    if short or finished(row, own).issuperset(program.seeds):
        return
    place.mkdir(parents=True, exist_ok=True)
    for path in stored_settings(row, options):
        write_whole(path, json.dumps(settings(row), indent=2) + "\n")
    agent = make_agent(program, options)
    try:
        watch = Watch(program, agent.num_envs, options, clock)
        print(f"{program.title}: from {agent.steps:,} to {watch.limit:,} steps", flush=True)
        train(agent, watch, clock)
        if agent.steps >= row.steps:
            returns = np.reshape(agent.evaluate(row.final_episodes)["returns"],
                                 (len(program.seeds), row.final_episodes))  # fmt: skip
            means, seconds = returns.mean(axis=1).tolist(), watch.seconds_at(agent.steps)
            watch.keep(FINAL, agent.steps, row.final_episodes, means, seconds)
            shutil.rmtree(place / RUN / checkpoint.DIRECTORY)
    finally:
        agent.close()


def train(agent: us.Agent, watch: Watch, clock: Clock) -> None:
    """Up to the limit, or until the time is over. The steps asked for are those of the whole row,
    because schedules span them; the callback ends training earlier."""
    row = watch.program.row
    run = us.RunConfig(
        log_every=min(LOG_EVERY, row.evaluate_every),
        evaluate_every=row.evaluate_every,
        evaluation_episodes=row.episodes,
        checkpoint_every=0,
        keep_checkpoints=1,
    )
    while agent.steps < watch.limit:
        left, run_dir = row.steps - agent.steps, watch.program.place / RUN
        agent.train(left, run=run, run_dir=run_dir, callbacks=(watch,), progress=False)
        clock.saved()
        if clock.over:
            break


class RowInUse(Exception):
    """Another process runs the row; the argument is its name."""


def run_rows(rows: list[Row], options: argparse.Namespace) -> None:
    clock = Clock(options.minutes, options.checkpoint_minutes)
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.restart:
        check_settings(rows, options)
    for row in rows:
        try:
            with lock_file(options.work / f"{row.name}.lock", RowInUse):
                run_row(row, options, clock)
        except RowInUse as holder:
            print(f"{row.title}: left out, {holder} runs it")
        if clock.over:
            print("the time is over; the same command goes on from here")
            return


def run_row(row: Row, options: argparse.Namespace, clock: Clock) -> None:
    if options.restart:
        restart(row, options)
    for program in programs(row, options):
        run_program(program, options, clock)
        gc.collect()  # replay is large
        if clock.over:
            return


def show_status(rows: list[Row], options: argparse.Namespace) -> None:
    for row in rows:
        found = standing(row, read(row.csv(options.results)))
        state = "missing" if found is None else "done" if found.complete else "partial"
        seeds = 0 if found is None else len(found.scores)
        steps = f"0 of {row.steps:,}" if found is None else found.progress(row)
        words = [f"{steps} steps", f"{seeds} of {len(row.seeds)} seeds"]
        runs = (options.work / row.name).glob(f"seeds*/{RUN}")
        at = [int(places[-1].name) for run in runs if (places := checkpoint.numbered(run))]
        if at:
            words.append(f"checkpoints at {', '.join(f'{steps:,}' for steps in sorted(at))}")
        if any(changes(row, path) for path in stored_settings(row, options)):
            words.append("made with other settings than the present ones")
        print(f"{state:8} {row.method:12} {row.env:16} {', '.join(words)}")


def select(matrix: tuple[Row, ...], only: list[str]) -> list[Row]:
    """The rows that are named METHOD or METHOD:ENV; all without a name. A method is an algorithm
    or, with a recipe, algorithm-recipe."""
    names = {row: {row.method, f"{row.method}:{row.env}"} for row in matrix}
    unknown = set(only).difference(*names.values())
    if unknown:
        raise us.UnderstudyError(f"no such row: {', '.join(sorted(unknown))}")
    return [row for row in matrix if not only or names[row].intersection(only)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    words = {"run": "run rows that are missing", "status": "list rows", "report": "write the page"}
    for name, help in words.items():
        add = commands.add_parser(name, help=help).add_argument
        add("--matrix", choices=MATRICES, default="proof")
        add("--results", type=Path, help="default: results/MATRIX beside this script")
        if name == "report":
            continue
        add(
            "--work",
            type=Path,
            help="run directories and checkpoints (default: .proof/MATRIX beside this script)",
        )
        add("--only", action="append", default=[], metavar="METHOD[:ENV]")
        if name == "status":
            continue
        add("--minutes", type=float, help="stop after that time (default: when all is done)")
        add("--steps", type=int, help="stop rows after that many steps, to try things out")
        add("--seeds-per-program", type=int, default=10)
        add("--first-seeds", type=int, metavar="N", help="only the first N seeds of each row")
        add("--checkpoint-minutes", type=float, default=10.0)
        add("--env-workers", type=int, default=0, help="of programs that begin")
        add("--commit", help="what the CSV says, where there is no git")
        add("--restart", action="store_true", help="start rows afresh whose settings changed")
    options = parser.parse_args(arguments)
    options.results = options.results or HERE / "results" / options.matrix
    if options.command != "report":
        options.work = options.work or HERE / ".proof" / options.matrix
    if options.command == "run":
        counts = (options.seeds_per_program, options.steps, options.first_seeds)
        if any(count is not None and count < 1 for count in counts):
            parser.error("--seeds-per-program, --steps and --first-seeds must be at least 1")
    return options


def main(arguments: list[str] | None = None, matrices: dict[str, Matrix] = MATRICES) -> None:
    options = parse(arguments)
    matrix, header = matrices[options.matrix]
    try:
        if options.command == "report":
            print(report(matrix, options.results, header))
        else:
            act = run_rows if options.command == "run" else show_status
            act(select(matrix, options.only), options)
    except us.UnderstudyError as error:
        raise SystemExit(f"proof.py: {error}") from None
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
