"""Tells whether torch can be imported, and why not; imports it only when asked."""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple


class TorchProblem(NamedTuple):
    """Why torch cannot be imported, and what to do."""

    state: Literal["missing", "broken"]
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"torch: {self.found}. {self.remedy}"


@cache
def torch_problem() -> TorchProblem | None:
    """What is wrong with torch; None if it can be imported."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return TorchProblem("missing", "not installed", "pip install torch")
        return _broken(error)
    except Exception as error:  # a missing or mismatched library may raise any type
        return _broken(error)
    return None


def _broken(error: Exception) -> TorchProblem:
    why = " ".join(str(error).split())[:300]
    return TorchProblem(
        "broken",
        f"installed, but cannot be imported ({type(error).__name__}: {why})",
        "Install the torch that fits this machine's driver and libraries, or one for the CPU.",
    )
