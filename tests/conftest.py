"""Settings that hold for every test.

They are environment variables where possible, made before anything imports JAX, so that
processes started by a test inherit them. Nothing here may import `understudy`: the annotation
checker has to be in place first.
"""

import os
import signal
from pathlib import Path

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
