"""Where the build is (FHD_BUILD, default build) and the programs of tests/data in it."""
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FHD_BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD
TOOL = BUILD / "tests" / "data" / "bars"
LIMIT_S = 120 * float(os.environ.get("FHD_SLOWDOWN", "1"))
FEATURES = BUILD / "tests" / "data" / "features"
