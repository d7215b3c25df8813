"""Keeps the bytecode of engines, which takes seconds of every start to make anew.

A worker is handed the folder of a release, which lies in a cache of our own: its bytecode is
written below that folder, also where the environment says that Python writes none
(`PYTHONDONTWRITEBYTECODE`, common in containers). A tree of sources belongs to its owner: nothing
is written there, and its bytecode lies in the cache.
"""

from __future__ import annotations

import importlib.machinery as machinery
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import PathEntryFinder
from pathlib import Path
from types import CodeType

from fuzzgraph.process.cache import cache_root
from fuzzgraph.run.spec import Setup
from fuzzgraph.worker.watched import Watched


class _KeptSource(machinery.SourceFileLoader):
    """Writes bytecode whatever `sys.dont_write_bytecode` says."""

    apart: str | None = None
    """Folder for bytecode; None for `__pycache__` beside the source."""
    watched = Watched({})

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if path in self.watched:  # its bytecode is of no use to anybody else
            return self.watched.compiled(self.get_data(path), path)
        before = sys.dont_write_bytecode, sys.pycache_prefix
        sys.dont_write_bytecode, sys.pycache_prefix = False, self.apart
        try:
            return super().get_code(fullname)
        finally:
            sys.dont_write_bytecode, sys.pycache_prefix = before


class _ChangingSource(_KeptSource):
    """Source that may change twice within the second to which bytecode is dated.

    The checksum of its text takes the place of its time: bytecode of other text is never used.
    """

    def path_stats(self, path: str) -> Mapping[str, float]:  # type: ignore[override]
        text = self.get_data(path)
        return {"mtime": zlib.crc32(text), "size": len(text)}


def import_engine_from(paths: Sequence[str], setup: Setup, watched: Watched | None = None) -> None:
    """Put the folders of a setup's release or tree first on the path, and keep their bytecode.

    Args:
        watched: statements of the engine to note; none of their files may be imported yet.
    """
    keep_bytecode(paths, cache_root() / "bytecode" if setup.source else None, watched)
    sys.path[:0] = paths


def keep_bytecode(
    folders: Sequence[str], apart: Path | None = None, watched: Watched | None = None
) -> None:
    """From now on, for modules below these folders; before any of them is imported.

    Args:
        apart: folder to keep it in, for trees of sources; None for releases.
    """
    base = _ChangingSource if apart else _KeptSource
    settings = {"apart": str(apart) if apart else None, "watched": watched or Watched({})}
    kind = type("_Kept", (base,), settings)
    below = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    find: Callable[[str], PathEntryFinder] = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (kind, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )

    def hook(path: str) -> PathEntryFinder:
        if not f"{path.rstrip('/')}/".startswith(below):
            raise ImportError(f"{path} is not below an engine")  # the next hook is asked
        return find(path)

    if below:
        sys.path_hooks.insert(0, hook)
