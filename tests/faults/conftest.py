"""Makes the helpers here importable, and those of other rooms, also in worker processes, which
inherit the path."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "envs"), str(HERE.parent / "qd")]
