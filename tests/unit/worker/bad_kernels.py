"""The built-in engine with a kernel at fault, as the tool tells it, and an executable in its place.

The engine's session appends to the tool's report while it replays, in the tool's own form, with
addresses of the memory that it really has: what compute-sanitizer does behind a kernel.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

import fuzzgraph.reference
from fuzzgraph.targets import open_target

LOG = "FAKE_SANITIZER_LOG"
_OPTIONS = "--tool --log-file --print-limit --launch-timeout --strip-paths --report-api-errors"

_TOOL = """\
#!{python}
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--help"]:
    print("{options}")
    sys.exit(0)
given = {{}}
while words and words[0].startswith("--"):
    given[words[0]], words = words[1], words[2:]
with open({called!r}, "a") as called:
    print(*given.items(), file=called)
assert set(given) <= set("{options}".split()), given
log = given["--log-file"]
with open(log, "w") as report:
    print("========= COMPUTE-SANITIZER", file=report)
code = subprocess.run(words, env=dict(os.environ, {log}=log)).returncode if {runs} else 1
with open(log, "a") as report:
    report.write({report!r})
sys.exit(code)
"""


def install_tool(folder: Path, report: str, *, runs: bool = True) -> Path:
    """An executable of the tool's name, whose report ends in a text; the file of its calls.

    Args:
        runs: whether it runs what it is given.
    """
    folder.mkdir(exist_ok=True)
    called = folder / "called.txt"
    text = _TOOL.format(
        python=sys.executable,
        options=_OPTIONS,
        called=str(called),
        log=LOG,
        report=report,
        runs=runs,
    )
    path = folder / "compute-sanitizer"
    path.write_text(text)
    path.chmod(0o755)
    return called


def _append(text: str) -> None:
    with Path(os.environ[LOG]).open("a") as log:
        log.write(text)


def invalid_write(address: int, at: str = "_store_kernel+0x1a0 in /engine/store.py:123") -> str:
    return (
        "========= Invalid __global__ write of size 4 bytes\n"
        f"=========     at {at}\n"
        "=========     by thread (3,0,0) in block (1,0,0)\n"
        f"=========     Access to {address:#x} is misaligned\n"
        "=========     Saved host backtrace up to driver entry point at kernel launch time\n"
        "=========         Host Frame: cudaGraphLaunch [0x6bedb] in libcudart.so.13\n"
        "=========\n"
    )


class _Session:
    """A session of the built-in engine that does more behind one of its calls."""

    def __init__(self, session: Any, replayed: Any) -> None:
        self.unwrapped = getattr(session, "unwrapped", session)
        self._session, self._replayed = session, replayed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def replay(self, batch: Any) -> None:
        self._session.replay(batch)
        self._replayed(self._session, batch)


class _Target:
    """The built-in engine under another name, watched at its replays."""

    name = "bad-kernels"

    def __init__(self) -> None:
        self._target = open_target("builtin")
        self.unwrapped = self._target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: Any, graphs: Any) -> Any:
        self.memory = graphs.memory
        return _Session(self._target.open(config, graphs), self.replayed)

    def replayed(self, session: Any, batch: Any) -> None: ...


def _past(tensor: torch.Tensor, nbytes: int) -> int:
    return tensor.data_ptr() + tensor.nbytes + nbytes


class Overrun(_Target):
    """Step 1 stores 8 bytes past the end of the page indices, which no zone shows afterwards; the
    harness' own kernel is at fault as well."""

    def replayed(self, session: Any, batch: Any) -> None:
        if LOG not in os.environ:
            return
        _append(invalid_write(64, f"_attention+0x40 in {fuzzgraph.reference.__path__[0]}/own.py:3"))
        if batch.step == 1:
            [indices] = [
                tensor
                for name, (tensor, _) in session.captured_addresses().items()
                if name.endswith("kv_indices")
            ]
            _append(invalid_write(_past(indices, 8)) * 2)
