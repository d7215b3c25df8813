"""Builds commands that start another Python with the same FuzzGraph and import path as this one.

`python -m` and `python FILE` put a folder of their own first on the import path. If that folder is
another clone of FuzzGraph, such a process would run the other clone's code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import fuzzgraph

# Imports FuzzGraph from its own folder first, and sets the path of this process afterwards: on that
# path another folder with a `fuzzgraph` may come earlier. Paths travel as arguments, never as code.
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


# By which CUDA and HIP are told what devices a process may see.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def engine_environment(device: str) -> dict[str, str]:
    """For a process that runs an engine: ours, one thread; on a CPU Triton's interpreter, and no
    GPU, or an engine that looks for one would run half on it."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1")
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
        environment.update(dict.fromkeys(_VISIBLE, "-1"))
    return environment


def import_path() -> list[str]:
    """The folders that this process imports from, in order, as absolute paths."""
    return [os.path.abspath(entry) for entry in sys.path]


def module_command(name: str, *words: str) -> list[str]:
    """The command that runs a module like `python -m`, with this FuzzGraph and import path."""
    return [*_python(_MODULE, import_path()), name, *words]


def script_command(path: Path) -> list[str]:
    """The command that runs a file like `python FILE`, its folder first on the import path."""
    return [*_python(_SCRIPT, [str(path.parent), *import_path()]), str(path)]


def _python(code: str, path: Sequence[str]) -> list[str]:
    home = str(Path(fuzzgraph.__file__).absolute().parents[1])
    return [sys.executable, "-c", code, home, str(len(path)), *path]
