"""The helpers of the cluster's own tests, for those here."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "distributed"))
cases = importlib.import_module("cluster_cases")
