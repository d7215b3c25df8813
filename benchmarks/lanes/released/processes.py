"""Runs each row in a process of its own: a crash or a hang is what is seen of that row.

The process is a fork of this one, which has imported what all rows of an engine need.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from released.device import Capability, Import, claims_cuda, device
from released.launches import Judge, Launch, told
from released.row import Row, beside

SECONDS = 240
"""The longest that a row may take."""


@dataclass
class Seen:
    """What came of a row."""

    row: str
    engine: str
    launches: list[Launch] = field(default_factory=list)
    error: str = ""
    """What ended it, beside a launch that cannot run."""
    unequal: str = ""
    """Why bytes may differ, as the row says."""


def run_rows(engine: str, capability: Capability, rows: Sequence[Row]) -> Iterator[Seen]:
    """Each row's outcome, in their order."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    with device(engine, capability) as imported:
        for module in sorted({name for row in rows for name in row.modules}):
            with contextlib.suppress(Exception):  # the row that needs it says why
                imported(module)
        for row in rows:
            yield _apart(row, imported)


def _apart(row: Row, imported: Import) -> Seen:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(row, imported, there))
    child.start()
    there.close()
    seen = Seen(row.name, row.engine, unequal=row.unequal)
    try:
        if not here.poll(SECONDS):
            child.kill()
            seen.error = f"did not end within {SECONDS} s"
            return seen
        said = here.recv()
    except EOFError:
        child.join()
        code = child.exitcode or 0
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        seen.error = f"the process died: {name}"
        return seen
    child.join()
    seen.error = said["error"]
    seen.launches = [Launch(**each) for each in said["launches"]]
    return seen


def _child(row: Row, imported: Import, pipe: Any) -> None:
    judge, error = Judge(), ""
    beside.clear()
    if not os.environ.get("SHOW"):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        modules = [imported(name) for name in row.modules]
        with judge.installed(), claims_cuda():
            row.call(*modules)
    except Exception as raised:
        if not (judge.found and judge.found[-1].lanes):
            error = told(raised)
            if os.environ.get("SHOW"):
                import traceback

                traceback.print_exc(file=sys.stderr)
    pipe.send({"error": error, "launches": [asdict(each) for each in judge.found]})
    pipe.close()
    os._exit(0)
