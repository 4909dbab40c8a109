"""Makes the helpers here importable, also in the processes that Ray starts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
