"""Which decodes take the persistent kernel that AMD's GPUs have for Triton attention ("lean").

The backend chooses it at a graph's capture by the graph's size, and without a graph by lengths. It
sums in another order than the other kernels, so what it gives is not equal to theirs bit by bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module, has_module

_DECODES = "sglang.kernels.ops.attention.decode_attention"
_LAUNCHES = "_decode_lean_attention_fwd"


class LeanDecodes:
    """Notes which captures, and whether the last run without a graph, launched the kernel."""

    def __init__(self) -> None:
        self._launched = False
        self._captured: dict[Hashable, bool] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Around the engine's code."""
        if not has_module(_DECODES) or not hasattr(engine_module(_DECODES), _LAUNCHES):
            yield
            return
        module = engine_module(_DECODES)
        launch = getattr(module, _LAUNCHES)

        def launched(*args: Any, **kwargs: Any) -> Any:
            self._launched = True
            return launch(*args, **kwargs)

        with replaced_names([module], {_LAUNCHES: launched}):
            yield

    def remember(self, key: Hashable) -> None:
        """Keep what the capture of a graph has launched."""
        self._captured[key] = self._launched
        self.forget()

    def forget(self) -> None:
        """Begin a run without a graph."""
        self._launched = False

    def of_graph(self, key: Hashable) -> bool:
        """Whether a graph has the kernel."""
        return self._captured.get(key, False)

    @property
    def without_graph(self) -> bool:
        """Whether the last run without a graph had it."""
        return self._launched
