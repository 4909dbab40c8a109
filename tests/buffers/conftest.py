"""Makes the helper modules of this folder importable, such as `plain_lists`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
