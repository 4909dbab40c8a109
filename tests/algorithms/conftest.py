"""Makes the helpers `algorithm_cases` and `by_hand` importable here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
