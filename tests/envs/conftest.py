"""Makes `scripted` importable here and, because a worker inherits the path, in workers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
