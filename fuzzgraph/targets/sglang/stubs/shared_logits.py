"""The buffer for logits that the runners of a server share, made as its model runner makes it.

It has a row for each row of the largest decode graph. Real are its making and its size; what the
model runner asks itself for that is asked of the stand-in of it.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from fuzzgraph.targets.sglang.forward_batch.gathered_tokens import MODEL_RUNNER
from fuzzgraph.targets.sglang.release import SGLANG, engine_module, has_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

_SHARED = "sglang.srt.model_executor.graph_shared_output"
_ASKED = (
    "max_shared_logits_buffer_rows", "max_decode_logits_rows", "decode_graph_gather_requirements",
    "_decode_cuda_graph_runner_cls",
)  # fmt: skip
"""Methods that say how many rows it has, by release."""


def load_shared_logits() -> None:
    """Import what `shared_logits` needs."""
    if has_module(_SHARED):
        SGLANG.load(MODEL_RUNNER, _SHARED)


def shared_logits(runner: ModelRunner) -> Any:
    """A buffer of this session; None where runners of the release share none.

    Source: sglang cuda_graph_setup.py, `capture_cuda_graphs`.
    """
    if not has_module(_SHARED):
        return None
    asked = engine_module(MODEL_RUNNER).ModelRunner
    for name in _ASKED:
        if hasattr(asked, name):
            setattr(runner, name, MethodType(getattr(asked, name), runner))
    shared = engine_module(_SHARED).GraphSharedOutput
    shared._process_shared = None  # a session before this one had it
    return shared.create_for_model_runner(runner)
