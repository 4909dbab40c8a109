"""Makes the helper `policy_cases` importable here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "export"))
