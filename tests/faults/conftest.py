"""Makes the helpers here importable, also in worker processes, which inherit the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
