"""Runs generated scripts together in one process in which FuzzGraph cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["run_scripts"]

_DRIVER = """
import contextlib, io, json, runpy, sys
sys.modules["fuzzgraph"] = None
seen = {}
for path in sys.argv[1:]:
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            runpy.run_path(path, run_name="__main__")
        code = "no exit"
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    seen[path] = (code, text.getvalue())
print(json.dumps(seen))
"""


def run_scripts(folder: Path, scripts: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    """Name -> (exit code, what was printed) of each script; torch is imported once for all."""
    paths = {name: folder / f"{name}.py" for name in scripts}
    for name, text in scripts.items():
        paths[name].write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-c", _DRIVER, *map(str, paths.values())],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=folder,
    )
    seen = json.loads(done.stdout)
    return {name: tuple(seen[str(path)]) for name, path in paths.items()}
