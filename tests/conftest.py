"""Settings that hold for every test.

They are environment variables where possible, made before anything imports JAX, so that
processes started by a test inherit them. Nothing here may import `understudy`: the annotation
checker has to be in place first.
"""

import ctypes
import gc
import logging
import os
import signal
import sys
import warnings
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / ".jax_cache"

# `setdefault`: the environment may ask for an accelerator, or for other places.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

# Processes that a test starts import `tests` too. Paths that were given before come first.
paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(REPOSITORY)]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))

# Ray's processes run with niceness 15 unless told otherwise: beside busy cores they would starve.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_DISABLE_METRICS_COLLECTION", "1")

# Most of the time of a test run is compilation. Without its optimizations XLA compiles for the CPU
# three times as fast, and what is tested here is this library, not XLA. `make test-slow` runs what
# XLA makes by default. A process whose jaxlib does not know one of these flags ends at once.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if metadata.version("jaxlib").startswith("0.10."):
    QUICK += " --xla_cpu_use_fusion_emitters=false"
if os.environ.setdefault("UNDERSTUDY_TEST_COMPILER", "quick") == "quick":
    given = os.environ.get("XLA_FLAGS", "")
    if QUICK not in given:  # a nested test run has inherited them
        os.environ["XLA_FLAGS"] = f"{QUICK} {given}".strip()

# This version reports each program of the cache as an error, in the output that tests read.
if metadata.version("jaxlib") == "0.10.0":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Where in the source an operation comes from is no part of what is computed, and costs time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# Most programs are the same as in the last run, and many are the same as in another test.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A test process compiles the programs of many agents; a warning about it could come in any test.
logging.getLogger("understudy.compilation").setLevel(logging.ERROR)
# Most tests give small configs, which depart from the presets.
logging.getLogger("understudy.presets").setLevel(logging.ERROR)

# Tracing makes many objects that stay. With Python's own thresholds, looking for garbage among them
# takes a fifth of a test run.
gc.set_threshold(200_000, 20, 100)

# A shell ignores SIGINT in what it starts in the background, and programs leave it at that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A first call compiles, so a deadline would measure XLA; and a test run that fails must fail
# again when repeated.
settings.register_profile("understudy", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("understudy")

RAY_CORES = 4
RAY_WARNINGS = (
    "ignore::FutureWarning:ray",
    "ignore::DeprecationWarning:ray",
    "ignore::ResourceWarning",
    "ignore:.*fork:RuntimeWarning",  # beside JAX's threads; Ray's forks are followed by exec
)
MOST_MEMORY = 9 * 2**28  # bytes of a test process beyond which compiled programs are dropped
MOST_GROWTH = 2**28  # bytes since they were dropped last: not all memory goes back to the system
_kept = 0  # bytes when programs were dropped last


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Run the tests of a file in one process, in their order, and all tests on Ray in one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0]
            return "ray" if may_use_ray(file) else file

    return ByFile(config, log)


def may_use_ray(file):
    return any(part in file for part in ("/distributed/", "cluster", "ray_tune"))


def pytest_itemcollected(item):
    if item.get_closest_marker("ray"):
        assert may_use_ray(item.nodeid.split("::")[0]), item.nodeid
        for warning in RAY_WARNINGS:
            item.add_marker(pytest.mark.filterwarnings(warning))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True, scope="module")
def drop_programs():
    """Drop compiled programs after a file if memory has grown: they add up to many gigabytes, and
    another file seldom needs them."""
    global _kept
    yield
    if resident_bytes() > max(MOST_MEMORY, _kept + MOST_GROWTH):
        import jax

        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # gives freed memory back to the system
        _kept = resident_bytes()


@pytest.fixture
def monkeypatch(monkeypatch):
    """What a test replaces may be part of programs that other tests share."""
    plain, changed = monkeypatch.setattr, []

    def setattr_(*arguments, **named):
        changed.append(arguments[0])
        plain(*arguments, **named)
        forget_programs()

    def forget_programs():
        if "understudy.training.program_cache" in sys.modules:
            sys.modules["understudy.training.program_cache"].forget_programs()

    monkeypatch.setattr = setattr_
    yield monkeypatch
    if changed:
        monkeypatch.undo()
        forget_programs()


def start_ray():
    """Start a small Ray. Its processes inherit PYTHONPATH, so they can import `tests`."""
    from understudy.distributed.connect import load_ray

    ray = load_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",
            num_cpus=RAY_CORES,
            object_store_memory=80_000_000,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    return ray


@pytest.fixture(scope="session")
def ray():
    """One Ray for all tests that are marked so; they close what they start on it."""
    module = start_ray()
    yield module
    module.shutdown()


@pytest.fixture
def without_ray(ray):
    """Ray is not there during this test."""
    ray.shutdown()
    yield
    start_ray()


# -- which tests start processes ----------------------------------------------------------------

EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}
MAY_START = ("processes", "ray", "mujoco", "slow")  # markers; MuJoCo looks for a display
_started: list[str] = []
_start = BaseProcess.start


def _start_and_note(self):
    _started.append("multiprocessing")
    _start(self)


BaseProcess.start = _start_and_note
sys.addaudithook(lambda event, _: _started.append(event) if event in EVENTS else None)


def _refuse_processes(item):
    _started.clear()
    result = yield
    if _started and not any(map(item.get_closest_marker, MAY_START)):
        pytest.fail(f"it starts a process ({_started[0]}): mark it with one of {MAY_START}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """A test without a marker that allows it starts no process: `make test-fast` relies on it."""
    return (yield from _refuse_processes(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from _refuse_processes(item))
