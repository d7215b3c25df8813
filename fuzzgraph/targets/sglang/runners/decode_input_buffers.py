"""Metadata target `sglang-buffers`: the decode runner's input buffers, without any backend.

The release's own decode runner pads and fills them: `DecodeInputBuffers` up to 0.5.12, the buffer
registry from 0.5.13 on. Its attention backend only records, so that nothing but the runner is
judged, on one rank of several as well.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.backends.recording import recording_backend
from fuzzgraph.targets.sglang.decode_session import DecodeSession, keeps_ladder, load_once
from fuzzgraph.targets.sglang.fields import FREE_TAIL, input_fields, input_names
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

__all__ = ["BufferSession", "BufferTarget", "verify_target"]

_SUM = "sglang replay of the decode runner: seq_lens_sum + (bs - raw_bs) * seq_len_fill_value"


class BufferTarget(ReleasedTarget):
    """The decode runner of the sglang release that this process holds."""

    def __init__(self, mode: Literal["decode", "target_verify"] = "decode") -> None:
        self.name = "sglang-buffers" if mode == "decode" else "sglang-buffers-verify"
        self.about = f"the decode runner's own input buffers, {mode} graphs; no outputs"
        self.capabilities = Capabilities(
            modes=(mode,),
            max_batch=16,
            max_context_len=64,
            seq_len_fill_values=(1, 0),
            max_tp_size=8,
            max_spec_steps=3,
            max_spec_topk=4,
            max_draft_tokens=4,
            mrope=True,
            encoder=mode == "decode",
            capture_beyond_pool=True,
        )

    def _refused(self, config: EngineConfig) -> str | None:
        return keeps_ladder(config) if config.attn_tp_size > 1 else None

    def _session(self, config: EngineConfig, graphs: GraphEngine) -> BufferSession:
        return BufferSession(config, graphs)

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        load_once("sglang.srt.layers.attention.base_attn_backend")


def verify_target() -> BufferTarget:
    """`sglang-buffers-verify`: the target model's graphs of a server with speculation."""
    return BufferTarget("target_verify")


class BufferSession(DecodeSession):
    """One decode runner whose backend only looks on."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        self.inputs = input_names(config)
        total = Field("seq_lens_sum", "scalar", "nothing", FREE_TAIL, source=_SUM)
        declared = input_fields(config, config.seq_len_fill_value)
        self.fields = (*declared, total)
        super().__init__(config, graphs, backend="triton")

    def _open_backend(self, runner: ModelRunner) -> Any:
        return recording_backend(self._config.seq_len_fill_value)

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the backend was handed; it must be what the buffers hold."""
        handed: dict[str, torch.Tensor] = self.backend.handed_tensors()
        return handed
