"""What the harness says of an engine that raised: stage, error and the engine's own line."""

from __future__ import annotations

import traceback
from pathlib import Path

import fuzzgraph
from fuzzgraph.observation import RunKind, Stumble

__all__ = ["SessionLost"]

_PACKAGE = Path(fuzzgraph.__file__).parent
_HARNESS = tuple(
    str(_PACKAGE / name) for name in ("execution", "memory", "graphs", "campaign", "worker")
)


class SessionLost(Exception):
    """The engine raised; carries what the survival oracle reports."""

    def __init__(self, stumble: Stumble) -> None:
        super().__init__(stumble.error)
        self.stumble = stumble

    @classmethod
    def at(cls, stage: str, run: RunKind, error: BaseException) -> SessionLost:
        said = f"{type(error).__name__}: {_message(error)}"
        return cls(Stumble(run, stage, "exception", _printable(said), _innermost_line(error)))


def _message(error: BaseException) -> str:
    """Its message in one line of 300 characters; the engine's own `__str__` may raise as well."""
    try:
        return " ".join(str(error).split())[:300]
    except Exception as unspeakable:
        return f"(no message: its __str__ raised {type(unspeakable).__name__})"


def _printable(text: str) -> str:
    """Text that any file and terminal takes: lone surrogates and control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _innermost_line(error: BaseException) -> str:
    """The deepest source line of an error that lies in the engine, not in torch or the harness."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    engine = [
        (code, line)
        for code, line in frames
        if not code.co_filename.startswith(_HARNESS) and "/torch/" not in code.co_filename
    ]
    if not frames:
        return "?"
    code, line = (engine or frames)[-1]
    return _printable(f"{Path(code.co_filename).name}:{line} in {code.co_name}")
