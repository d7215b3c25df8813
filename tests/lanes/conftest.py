"""Without Triton there is nothing to test here, nor where it compiles kernels."""

from __future__ import annotations

from importlib.util import find_spec


def _interprets() -> bool:
    if find_spec("triton") is None:
        return False
    from tests.lanes.kernels.launch import COMPILED

    return not COMPILED


collect_ignore_glob = [] if _interprets() else ["test_*.py"]
