"""Commands that start another Python with the modules of this one.

`python -m` and `python FILE` put a folder of their own before all others. Where that folder is
another clone of FuzzGraph, such a process would run the other clone's code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import fuzzgraph

__all__ = ["import_path", "module_command", "script_command"]

# Imports FuzzGraph by its own folder alone: on the path another folder may come before it.
_START = """\
import sys
home, count = sys.argv[1], int(sys.argv[2])
path, sys.argv = sys.argv[3 : 3 + count], sys.argv[3 + count :]
sys.path[:] = [home, *path]
import fuzzgraph
sys.path[:] = path
import runpy
"""
_MODULE = _START + "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
_SCRIPT = _START + "runpy.run_path(sys.argv[0], run_name='__main__')"


def import_path() -> list[str]:
    """The folders that this process imports from, in its order, absolute."""
    return [os.path.abspath(entry) for entry in sys.path]


def module_command(name: str, *words: str) -> list[str]:
    """Runs a module as `python -m` does, with this process's FuzzGraph and import path."""
    return [*_python(_MODULE, import_path()), name, *words]


def script_command(path: Path) -> list[str]:
    """Runs a file as `python FILE` does, its folder first on this process's import path."""
    return [*_python(_SCRIPT, [str(path.parent), *import_path()]), str(path)]


def _python(code: str, path: Sequence[str]) -> list[str]:
    home = str(Path(fuzzgraph.__file__).absolute().parents[1])
    return [sys.executable, "-c", code, home, str(len(path)), *path]
