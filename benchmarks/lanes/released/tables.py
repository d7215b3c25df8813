"""All rows."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from released.row import Row


def rows(engine: str) -> list[Row]:
    """Those of one engine, in the order of its tables."""
    found: list[Row] = []
    for module in sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if module.startswith(f"{engine}_"):
            found += importlib.import_module(f"released.{module}").row.rows
    return found
