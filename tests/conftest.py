"""Settings that hold for every test.

They are environment variables where possible, made before anything imports JAX, so that
processes started by a test inherit them. Nothing here may import `understudy`: the annotation
checker has to be in place first.
"""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# `setdefault`: whoever wants the tests on an accelerator says so in the environment.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

# Most of the time of a test run is compilation, and most programs are the same as last time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A shell ignores SIGINT in what it starts in the background, and programs leave it at that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A first call compiles, so a deadline would measure XLA; and a test run that fails must fail
# again when repeated.
settings.register_profile("understudy", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("understudy")

ENOUGH = 3 * 2**30  # bytes that a process of the test run may keep from one file to the next


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Compiled programs add up to many gigabytes; those of a past file are seldom used again, and
    found on disk if they are."""
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    if pages * os.sysconf("SC_PAGE_SIZE") > ENOUGH:
        import jax

        jax.clear_caches()
        gc.collect()
