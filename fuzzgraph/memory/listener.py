"""The callbacks of a capture: what the recorder hears of the operations that the guard sees."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.memory.launches import Launch
from fuzzgraph.memory.operator_facts import Facts

Tensors = tuple[torch.Tensor, ...]


class Listener:
    """Told of every operation and launch that the guard sees; override what is needed."""

    def before_operation(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> None:
        """An operation is about to run; raise to refuse it."""

    def on_operation(
        self, func: Any, facts: Facts, args: Any, kwargs: Any, out: Any, fresh: Tensors
    ) -> None:
        """An operation ran; `fresh` are those results that have memory of their own."""

    def on_launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An interpreted Triton kernel, or the model of a kernel, was launched."""
