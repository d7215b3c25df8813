"""Entry point of the child; the parent runs it as `fuzzgraph.worker SOCKET`."""

from __future__ import annotations

import ctypes
import resource
import signal
import sys

from fuzzgraph.worker.serve import serve

_PR_SET_PDEATHSIG = 1


def _die_with_the_parent() -> None:
    """An engine in an endless loop would outlive a parent that was killed, and keep the device."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave_no_core() -> None:
    """A core of an engine has gigabytes, and a night may see thousands of deaths."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    _die_with_the_parent()
    _leave_no_core()
    serve(int(sys.argv[1]))
