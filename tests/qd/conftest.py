"""Makes the helpers here and the walks of the environments' tests importable, also in worker
processes."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "envs")]
