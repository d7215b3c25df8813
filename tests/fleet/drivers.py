"""The command of a fleet in a process of its own, to be killed, and what its logs have seen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzzgraph.fleet.ports import descendants, listening, wait_until_free
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import FindingNew

__all__ = ["Driver", "driver", "seen"]

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0


class Driver:
    """The command in a process of its own, with whatever it started."""

    def __init__(self, folder: Path, *words: str) -> None:
        environment = dict(
            os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", TMPDIR=str(folder / "tmp")
        )
        environment["RAY_TMPDIR"] = "/tmp"  # its sockets allow for 107 characters of path
        (folder / "tmp").mkdir(exist_ok=True)
        self._said = (folder / "said.txt").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzzgraph", *words],
            env=environment,
            cwd=folder,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        self._ports: frozenset[int] = frozenset()
        self._family: set[int] = set()

    def ray_workers(self) -> list[int]:
        """The processes that hold a shard."""
        family = descendants(self.process.pid) - {self.process.pid}
        self._ports |= listening(family)
        self._family |= family
        return [pid for pid in family if "ray::Shard" in _command(pid)]

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for pid in self._family:  # two agents of Ray's outlive a killed driver by a minute or more
            if "ray" in _command(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._said.close()
        wait_until_free(self._ports)


@contextmanager
def driver(folder: Path, *words: str) -> Iterator[Driver]:
    one = Driver(folder, *words)
    try:
        yield one
    finally:
        one.close()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def seen(folder: Path) -> set[str]:
    """Findings in any log of the run: the driver's, and those of the machines."""
    logs = [*folder.glob("run/events-*.jsonl"), *folder.glob("tmp/fuzzgraph-*/*/events-*.jsonl")]
    events = [event for log in logs for event in read_log(log)[0]]
    return {event.id for event in events if isinstance(event, FindingNew)}
