"""Whether torch can be imported here, and why not. Nothing is imported before one asks."""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

__all__ = ["TorchProblem", "torch_problem"]


class TorchProblem(NamedTuple):
    """Why torch cannot be imported, and the way out."""

    state: Literal["missing", "broken"]
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"torch: {self.found}. {self.remedy}"


@cache
def torch_problem() -> TorchProblem | None:
    """What is wrong with torch; None where it can be imported."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return TorchProblem("missing", "not installed", "pip install torch")
        return _broken(error)
    except Exception as error:  # a library that is missing or of another version: any type
        return _broken(error)
    return None


def _broken(error: Exception) -> TorchProblem:
    why = " ".join(str(error).split())[:300]
    return TorchProblem(
        "broken",
        f"installed, but cannot be imported ({type(error).__name__}: {why})",
        "Install the torch that fits this machine's driver and libraries, or one for the CPU.",
    )
