"""The folder in which FuzzGraph keeps what it would otherwise fetch or make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """FUZZGRAPH_CACHE where it is set, else ~/.cache/fuzzgraph; it need not exist."""
    root = os.environ.get("FUZZGRAPH_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "fuzzgraph"
