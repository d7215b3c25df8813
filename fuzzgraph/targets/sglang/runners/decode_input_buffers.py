"""Metadata target `sglang-buffers`: the decode runner's input buffers, without any backend.

The release's own decode runner pads and fills them: `DecodeInputBuffers` up to 0.5.12, the buffer
registry from 0.5.13 on. Its attention backend only records, so that nothing but the runner is
judged, on one rank of several as well.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.backends.recording import recording_backend
from fuzzgraph.targets.sglang.decode_session import (
    DATA_RANKS,
    WIDE_BATCH,
    DecodeSession,
    refused_capture_sizes,
)
from fuzzgraph.targets.sglang.fields import input_fields, input_names
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.target import SglangTarget

_SUM = "sglang replay of the decode runner: seq_lens_sum + (bs - raw_bs) * seq_len_fill_value"


class BufferTarget(SglangTarget):
    """The decode runner of the sglang release that this process holds."""

    also_stood_in_for = ("the attention backend",)

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        self.name = name
        self.about = f"the decode runner's inputs, {mode} graphs"
        self.capabilities = Capabilities(
            modes=(mode, "idle"),
            max_batch=16,
            max_wide_batch=WIDE_BATCH,
            max_context_len=LONGEST_CONTEXT,
            seq_len_fill_values=(1, 0),
            max_tp_size=8,
            **DATA_RANKS,
            max_spec_steps=3,
            max_spec_topk=4,
            max_draft_tokens=4,
            mrope=True,
            encoder=mode == "decode",
            capture_beyond_pool=True,
        )

    def refused(self, config: EngineConfig) -> str | None:
        if config.max_encoder_len and config.dp_size > 1:
            return f"dp_size={config.dp_size}: no model with an encoder has data-parallel attention"
        return refused_capture_sizes(config) if config.attn_tp_size > 1 else None

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BufferSession:
        return BufferSession(config, graphs)

    def modules(self) -> tuple[str, ...]:
        return ("sglang.srt.layers.attention.base_attn_backend",)


class BufferSession(DecodeSession):
    """One decode runner whose backend only looks on."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        self.inputs = input_names(config)
        total = fields.value("seq_lens_sum", source=_SUM)
        declared = input_fields(config, config.seq_len_fill_value)
        self.fields = (*declared, total)
        super().__init__(config, graphs, backend="triton")

    def _open_backend(self, runner: ModelRunner) -> Any:
        return recording_backend(self._config.seq_len_fill_value)

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the backend was handed; it must be what the buffers hold."""
        handed: dict[str, torch.Tensor] = self.backend.handed_tensors()
        return handed
