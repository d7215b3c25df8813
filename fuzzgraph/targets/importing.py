"""Targets of one's own, named module:factory."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fuzzgraph.errors import UsageError

if TYPE_CHECKING:
    from fuzzgraph.ports import Target

__all__ = ["import_root", "imported_target"]


def imported_target(name: str) -> Target:
    """The target that module:factory makes; the module may lie in the current folder.

    Raises:
        UsageError: one of them cannot be imported.
    """
    module, _, factory = name.partition(":")
    here = os.getcwd()  # and not '', which means another folder in a process that starts elsewhere
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return cast("Target", getattr(import_module(module), factory)())
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"target={name!r} cannot be opened ({error}). Write module:factory of a target, both "
            "importable here, or use a known name (see 'fuzzgraph targets')."
        ) from None


def import_root(name: str) -> str:
    """The folder from which Python imported the module of module:factory, absolute.

    It is '' for a known name, and for a module that is installed or was not imported.
    """
    module, colon, _ = name.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None) if colon else None
    path = Path(file or "site-packages").absolute()
    if "site-packages" in path.parts:
        return ""
    above = module.count(".") + (path.name == "__init__.py")
    return str(path.parents[above])
