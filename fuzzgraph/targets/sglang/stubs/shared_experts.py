"""Whether a model fuses its shared expert with the others, decided as its loader has it decided.

Real is the engine's decision, by its arguments and its model's own conditions; stood in for is the
loader, which asks before it builds the first layer (sglang model_loader/loader.py,
model_executor/model_runner.py `model_context`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.fused_experts import SETTINGS

_CONTEXT = "sglang.srt.runtime_context"


@contextlib.contextmanager
def decided_by_loader(model: Any, described: Any) -> Iterator[Any]:
    """Around what builds the layers of an unquantised model: the engine has made its decision.

    Args:
        model: the engine's class; None: it has none that decides, and arguments say it all.
    Yields:
        What the model keeps of the decision from 0.5.23 on, for its forwards; else None.
    """
    settings = engine_module(SETTINGS)
    if model is not None and hasattr(settings, "resolve_shared_experts_config"):
        layout = settings.resolve_shared_experts_config(model, described, None)
        with engine_module(_CONTEXT).get_model().override(shared_experts=layout):
            yield layout
        return
    if model is not None and hasattr(settings, "install_shared_experts_fusion_decision"):
        settings.install_shared_experts_fusion_decision(model, described, None)
    yield None
