"""Makes the helpers of other tests importable here."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "qd"), str(HERE.parent / "envs")]
