"""Makes `listed`, the list model of the ring, importable here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
