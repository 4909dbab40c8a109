"""Compare two commits array by array and bit for bit.

    python benchmarks/golden.py --reference COMMIT             # all configurations
    python benchmarks/golden.py --reference COMMIT --only sac td3 --jobs 2

The script trains each configuration of golden_configs.py twice on this machine: with the source of
the reference commit and with that of the working tree. All arrays of the checkpoints (training
state, experience, open episodes), their counters and the log must be equal, except times. The exit
status is 1 if anything differs without a reason.

The script keeps the results of the reference in benchmarks/.golden/. It uses them again until the
definition of the configuration, the driver, the version of a package or the machine changes. XLA
compiles without optimizations, as in the tests, which takes a third of the time. The variable
XLA_FLAGS replaces the flags for that.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from golden_configs import DEFINITIONS, Definition
from safetensors.numpy import load_file

# -- what is edited when names change ------------------------------------------------------------

# Old public name -> new one, of classes, keywords and config fields. The driver uses the new one if
# a tree does not have the old one.
ALIASES: dict[str, str] = {
    "entropy_coeff": "temperature",
    "fragment": "collector_chunk_steps",
    "initial_entropy_coeff": "initial_temperature",
    "initialisation": "initialization",
    "normalise_advantages": "normalize_advantages",
    "normalise_observations": "normalize_observations",
    "normalise_rewards": "normalize_rewards",
    "optimiser": "optimizer",
    "penalise_actions": "penalize_actions",
    "prioritised": "prioritized",
}

# (pattern, replacement): `re.sub` applies them, in this order, to the reference's names. `read`
# makes the names: learner/state.actor.head.bias, world/experience.cursor,
# manifest/position.updates, log/train/actor_loss.
NAME_MAP: list[tuple[str, str]] = [
    (r"^learner/((?:.*\.)?state)\.(actor|critic|temperature|duals)\b", r"learner/\1.params.\2"),
    (r"^learner/((?:.*\.)?state)\.target_(actor|critic)\b", r"learner/\1.targets.\2"),
    (r"^learner/((?:.*\.)?state)\.(\w+)_moments\b", r"learner/\1.opt_state.\2"),
    (r"^learner/((?:.*\.)?state)\.opt_state\.dual\b", r"learner/\1.opt_state.duals"),
    # A2C's optimizer was one for both networks, and clipping was a part of every optimizer.
    (r"^learner/((?:.*\.)?state)\.moments\.1\.", r"learner/\1.moments."),
    (r"^learner/((?:.*\.)?state)\.moments\.(\w+)\.0\.", r"learner/\1.opt_state.actor.\2."),
    (r"^learner/((?:.*\.)?state)\.moments\.(\w+)\.1\.", r"learner/\1.opt_state.critic.\2."),
    (r"^learner/((?:.*\.)?state)\.moments\.count$", r"learner/\1.opt_state.actor.count"),
    (r"^(learner/(?:.*\.)?state\.opt_state\.\w+)\.1\.(count|mu|nu)\b", r"\1.\2"),
    (r"^learner/((?:.*\.)?state)\.running\b", r"learner/\1.normalizer"),
    (r"^world/experience\.memory$", "world/experience.recurrent_state"),
    (r"^(world/acting\.collector\.\d+)\.life$", r"\1.attempt"),
    (r"\bmemory\.hidden$", "memory.recurrent_state"),
    (r"\.senses\b", ".observation_encoder"),
    (r"\.observation_encoder\.sight\b", ".observation_encoder.extractor"),
    (r"(\.extractor(?:\.encoders\.[^.]+)?)\.encoder\b", r"\1.cnn"),
    (r"\.cnn\.convolution\b", ".cnn.convolutions.0"),
    (r"^(world/acting\.(?:.*\.)?policy)\.seen\b", r"\1.normalizer"),
    (r"(\.normalizer(?:\.\w+)?)\.rest$", r"\1.compensation"),
    (r"^(world/acting\.collector\.\d+)\.kept\.", r"\1.state."),
    (r"^(world/acting\.arrived\.\d+)\.place$", r"\1.slot"),
]

LOGGED_GENERATIONS = "quality-diversity counts logged generations, not steps"
# What an update computes, and all that follows from it; no counters and no keys.
COMPUTED = (
    r"^(learner/state\.(params|targets|opt_state)|world/(acting|experience)\.|manifest/scores"
    r"|log/(train|rollout|eval)/)(?!.*(count|cursor|stored)$)"
)
# Float32 sums in another order: differences of about 1e-7 in an update.
UNROLLED_ONCE = "an update unrolls each encoder once"
SPLIT_PRODUCT = "critics add the first layer's products with the state and with each action"
# Configuration ("*": all) -> pattern of (new) names -> why they may differ, be missing or be extra.
DEVIATIONS: dict[str, dict[str, str]] = {
    "*": {
        r"^world/acting\.(.*\.)?(blocks?|(seen|chunk)\..*)$": "steps are stored by field, not as "
        "bytes, and apart from what is acted on next",
        r"^world/acting\.((.*\.)?tally\.ended|episodes)$": "ended episodes hold what environments "
        "reported, and a cluster stores those that no row has counted",
        r"^world/acting\.(.*\.)?environments\.applied$": "changes of environments are counted",
    },
    "a2c-minibatches": {
        r"\.opt_state\.critic\.count$": "each network has an optimizer of its own",
    },
    "sac-gru-device": {COMPUTED: UNROLLED_ONCE},
    "mpo": {COMPUTED: SPLIT_PRODUCT},
    "mpo-penalty": {COMPUTED: SPLIT_PRODUCT},
    "sac-nstep": {
        r"\.opt_state\.temperature\.": "a temperature that is fixed has no optimizer",
        r"\.hyper\.(entropy_coeff|temperature)$": "SAC's entropy_coeff is called temperature now, "
        "A2C's is not",
    },
    "pga-me": {
        r"^world/experience\.storage\.": "rows that are no steps are no longer written to the slot "
        "under the cursor, which is never sampled",
        r"^manifest/position\.logged$": LOGGED_GENERATIONS,
    },
    "pga-me-device": {r"^manifest/position\.logged$": LOGGED_GENERATIONS},
    "map-elites-device": {r"^manifest/position\.logged$": LOGGED_GENERATIONS},
}

# ------------------------------------------------------------------------------------------------

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
KEPT = HERE / ".golden"
DRIVER = HERE / "golden_driver.py"
CLOCKS = re.compile(r"^(log|manifest)/.*(fps|per_second|seconds|elapsed)")
COUNTERS = ("position", "scores", "draws")  # in the manifest of a checkpoint
PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "optax", "gymnasium")  # packages
# Those of tests/conftest.py.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if metadata.version("jaxlib").startswith("0.10."):
    QUICK += " --xla_cpu_use_fusion_emitters=false"
SETTINGS = {
    "JAX_COMPILATION_CACHE_DIR": str(REPOSITORY / ".jax_cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    "RAY_DISABLE_METRICS_COLLECTION": "1",
    "RAY_worker_niceness": "0",
    "XLA_FLAGS": QUICK,
}  # unless the environment says otherwise
TIME_LIMIT = 1_800  # seconds of one run
NAMES_SHOWN = 3  # names in a verdict

Arrays = Mapping[str, np.ndarray]


# -- comparing -----------------------------------------------------------------------------------


@dataclass
class Comparison:
    """The differences between two results."""

    compared: int = 0
    """Arrays in both, columns of the log aside."""
    differing: dict[str, float | str] = field(default_factory=dict)
    """Name -> the largest absolute difference, or a description of the difference."""
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    allowed: dict[str, str] = field(default_factory=dict)
    """Name -> the reason why it may deviate."""

    @property
    def good(self) -> bool:
        return not (self.differing or self.missing or self.extra)

    @property
    def verdict(self) -> str:
        parts = []
        if self.differing:
            parts.append(f"differs: {shortened(list(self.differing))}, {self._largest()}")
        if self.missing:
            parts.append(f"missing: {shortened(self.missing)}")
        if self.extra:
            parts.append(f"extra: {shortened(self.extra)}")
        for reason in dict.fromkeys(self.allowed.values()):
            names = [name for name, why in self.allowed.items() if why == reason]
            parts.append(f"deviates ({reason}): {shortened(names)}")
        return "; ".join(parts) or "equal"

    def _largest(self) -> str:
        numbers = [value for value in self.differing.values() if not isinstance(value, str)]
        words = [value for value in self.differing.values() if isinstance(value, str)]
        if not numbers:
            return words[0]
        return f"max abs difference {np.max(numbers):.3g}"  # NaN if any is


def shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def compare(
    reference: Arrays,
    present: Arrays,
    name_map: Sequence[tuple[str, str]] = (),
    deviations: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare all arrays of two results, the reference's under their new names."""
    renamed, found = rename(reference, name_map), Comparison()
    for name in sorted(renamed.keys() | present.keys()):
        if name in renamed and name in present:
            found.compared += not name.startswith("log/")
            different = difference(renamed[name], present[name])
            if different is None:
                continue
        else:
            different = None
        reason = reason_for(name, deviations or {})
        if reason is not None:
            found.allowed[name] = reason
        elif different is not None:
            found.differing[name] = different
        else:
            (found.missing if name in renamed else found.extra).append(name)
    return found


def rename(arrays: Arrays, name_map: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        for pattern, replacement in name_map:
            name = re.sub(pattern, replacement, name)
        if name in renamed:
            raise ValueError(f"the name map gives two arrays the name {name}")
        renamed[name] = array
    return renamed


def reason_for(name: str, deviations: Mapping[str, str]) -> str | None:
    return next((why for pattern, why in deviations.items() if re.search(pattern, name)), None)


def difference(reference: np.ndarray, present: np.ndarray) -> float | str | None:
    """None if both have the same type, shape and bits."""
    kinds = [f"{array.dtype}{list(array.shape)}" for array in (reference, present)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} became {kinds[1]}"
    if reference.tobytes() == present.tobytes():
        return None
    if reference.dtype.kind not in "bif":  # unsigned: random keys, images, packed bytes
        return "other values"
    with np.errstate(invalid="ignore"):
        apart = np.abs(reference.astype(np.float64) - present.astype(np.float64))
    same = np.isnan(reference) & np.isnan(present)
    return float(np.max(np.where(same, 0.0, apart)))


# -- reading -------------------------------------------------------------------------------------


def read(place: Path) -> dict[str, np.ndarray]:
    """All arrays of a result by name, clocks aside. Counters and columns of the log are arrays
    too."""
    arrays: dict[str, np.ndarray] = {}
    for path in sorted((place / "saved").glob("*.safetensors")):
        arrays |= {f"{path.stem}/{name}": array for name, array in load_file(path).items()}
    for path in sorted((place / "saved").glob("*.json")):
        arrays |= counters(json.loads(path.read_text(encoding="utf-8")))
    arrays |= read_log(place / "run" / "progress.csv")
    return {name: array for name, array in arrays.items() if not CLOCKS.search(name)}


def counters(manifest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    named: dict[str, Any] = {}
    for name in COUNTERS:
        value = manifest.get(name)
        if isinstance(value, dict):
            named |= {f"{name}.{part}": number for part, number in value.items()}
        elif value is not None:
            named[name] = value
    return {f"manifest/{name}": np.array(value) for name, value in named.items()}


def read_log(path: Path) -> dict[str, np.ndarray]:
    """The columns as float64, where an empty cell is NaN; those that are no numbers as text."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    columns: dict[str, np.ndarray] = {}
    for name, *cells in zip(header, *rows, strict=True):
        try:
            column = np.array([float(cell or "nan") for cell in cells])
        except ValueError:
            column = np.array(cells)
        columns[f"log/{name}"] = column
    return columns


def rows_of(arrays: Arrays) -> int:
    return max((len(array) for name, array in arrays.items() if name.startswith("log/")), default=0)


# -- running -------------------------------------------------------------------------------------


def environment(tree: Path) -> dict[str, str]:
    ours = {"PYTHONPATH": str(tree / "src"), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    return SETTINGS | dict(os.environ) | ours


def execute(tree: Path, definition: Definition, place: Path) -> None:
    """Train one configuration with the source of a tree; the result is in `place`."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    job = {
        "definition": asdict(definition),
        "aliases": ALIASES,
        "source": str(tree / "src"),
        "out": str(place),
    }
    output = place / "output.txt"
    with output.open("w") as file:
        # The working directory is `place`, so that no file ends up in the repository.
        done = subprocess.run(
            [sys.executable, str(DRIVER), json.dumps(job)],
            cwd=place,
            env=environment(tree),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT,
        )
    if done.returncode:
        said = output.read_text(errors="replace").strip().splitlines() or ["no output"]
        raise RuntimeError(f"exit status {done.returncode}: {said[-1]}")


@cache
def machine() -> dict[str, str]:
    """The facts that the bits of a result may depend on, apart from the source."""
    facts = {"python": sys.version, "flags": environment(REPOSITORY)["XLA_FLAGS"]}
    facts |= {name: metadata.version(name) for name in PACKAGES}
    facts |= {"cores": str(os.cpu_count()), "machine": platform.machine()}
    known = Path("/proc/cpuinfo")
    if known.exists():
        lines = known.read_text().splitlines()
        facts["cpu"] = next((line for line in lines if line.startswith("model name")), "")
    return facts


def fingerprint(definition: Definition) -> str:
    """A hash that changes when a kept result is no longer valid."""
    facts = [asdict(definition), DRIVER.read_text(encoding="utf-8"), machine()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def is_kept(place: Path, definition: Definition) -> bool:
    mark = place / "fingerprint"
    return mark.exists() and mark.read_text() == fingerprint(definition)


def git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(REPOSITORY), *arguments], check=True, stdout=subprocess.PIPE
    ).stdout


def check_out(commit: str, folder: Path) -> None:
    """Extract the source of a commit. The driver is that of the working tree."""
    archive = git("archive", "--format=tar", commit, "src")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


@dataclass(frozen=True)
class Outcome:
    """A line of the report."""

    name: str
    seconds: float
    good: bool
    verdict: str
    arrays: int = 0
    rows: int = 0

    def __str__(self) -> str:
        return f"{self.name:<28}{self.arrays:>7}{self.rows:>6}{self.seconds:>9.1f}  {self.verdict}"


@dataclass(frozen=True)
class Comparing:
    """The directories of the reference's source, of its results, and of the working tree's
    results."""

    reference: Path
    kept: Path
    present: Path

    def outcome(self, name: str) -> Outcome:
        """Run what is missing of one configuration, and compare."""
        began = time.perf_counter()
        definition, kept = DEFINITIONS[name], self.kept / name
        side = "reference"
        try:
            if not is_kept(kept, definition):
                execute(self.reference, definition, kept)
                (kept / "fingerprint").write_text(fingerprint(definition))
            side = "working tree"
            execute(REPOSITORY, definition, self.present / name)
            reference, present = read(kept), read(self.present / name)
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            seconds = time.perf_counter() - began
            return Outcome(name, seconds, False, f"failed ({side}): {error}")
        found = compare(reference, present, NAME_MAP, DEVIATIONS["*"] | DEVIATIONS.get(name, {}))
        seconds, rows = time.perf_counter() - began, rows_of(reference)
        return Outcome(name, seconds, found.good, found.verdict, found.compared, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", metavar="COMMIT", help="what to compare with")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these configurations alone")
    parser.add_argument("--list", action="store_true", help="list the configurations")
    parser.add_argument("--jobs", type=int, default=1, help="configurations at a time")
    parser.add_argument("--keep", type=Path, help="where to keep the working tree's results")
    options = parser.parse_args(arguments)
    if options.list:
        for name, one in DEFINITIONS.items():
            print(f"{name:<28}{one.method} on {one.env}, {one.steps} steps")
        return 0
    if options.reference is None:
        parser.error("--reference is needed")
    names = options.only or list(DEFINITIONS)
    unknown = [name for name in names if name not in DEFINITIONS]
    if unknown:
        parser.error(f"there is no configuration {', '.join(unknown)} (--list shows them)")
    commit = git("rev-parse", "--verify", f"{options.reference}^{{commit}}").decode().strip()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="golden") as folder:
        comparing = Comparing(
            reference=Path(folder) / "reference",
            kept=KEPT / commit,
            present=(options.keep or Path(folder) / "present").resolve(),
        )
        if not all(is_kept(comparing.kept / name, DEFINITIONS[name]) for name in names):
            check_out(commit, comparing.reference)
        print(f"{commit[:12]} and {REPOSITORY}")
        print(f"{'configuration':<28}{'arrays':>7}{'rows':>6}{'seconds':>9}  verdict", flush=True)
        pool, outcomes = ThreadPoolExecutor(options.jobs), []
        try:
            for outcome in pool.map(comparing.outcome, names):
                outcomes.append(outcome)
                print(outcome, flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    wrong = sum(not outcome.good for outcome in outcomes)
    print(f"{len(outcomes) - wrong} of {len(outcomes)} agree, {time.perf_counter() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
