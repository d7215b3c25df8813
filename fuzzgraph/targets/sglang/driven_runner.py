"""What the engine's graph runners show of themselves, whatever their shape."""

from __future__ import annotations

from typing import Any

__all__ = ["DrivenRunner"]


class DrivenRunner:
    """Reads a runner of the engine."""

    _engine: Any

    @property
    def buffers(self) -> Any:
        """The static inputs, one attribute each."""
        return self._engine.buffers

    @property
    def width(self) -> int:
        """Tokens of each row."""
        if hasattr(self._engine, "captured_req_width"):  # its name from 0.5.16 on
            return int(self._engine.captured_req_width)
        return int(self._engine.num_tokens_per_bs)

    @property
    def padded_bs(self) -> int:
        """Of the last replay; before any the largest captured size."""
        return int(getattr(self._engine, "bs", self._engine.max_bs))
