"""Keeps the bytecode of released engines, which takes seconds of every start to make anew.

A worker is handed the folder of a release, which lies in a cache of our own. Where the environment
says that Python writes no bytecode (`PYTHONDONTWRITEBYTECODE`, common in containers), it is still
written below that folder, and nowhere else.
"""

from __future__ import annotations

import importlib.machinery as machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import PathEntryFinder
from types import CodeType


class _KeptSource(machinery.SourceFileLoader):
    """Writes bytecode whatever `sys.dont_write_bytecode` says."""

    def get_code(self, fullname: str) -> CodeType | None:
        refused, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        try:
            return super().get_code(fullname)
        finally:
            sys.dont_write_bytecode = refused


def keep_bytecode(folders: Sequence[str]) -> None:
    """From now on, for modules below these folders; before any of them is imported."""
    below = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    find: Callable[[str], PathEntryFinder] = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (_KeptSource, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )

    def hook(path: str) -> PathEntryFinder:
        if not f"{path.rstrip('/')}/".startswith(below):
            raise ImportError(f"{path} is not below a release")  # the next hook is asked
        return find(path)

    if below:
        sys.path_hooks.insert(0, hook)
