"""The targets on FlashInfer's wrappers."""

from __future__ import annotations

from typing import Any

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig, Mode
from fuzzgraph.kernel_models.flashinfer.planners import STANDS_FOR
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.flashinfer.excuses import EXCUSES
from fuzzgraph.targets.flashinfer.release import float_workspace_bytes, load
from fuzzgraph.targets.flashinfer.session import WrapperSession
from fuzzgraph.targets.flashinfer.wrappers import KINDS
from fuzzgraph.targets.offline.target import ReleasedTarget

__all__ = ["WrapperTarget"]

_SERVERS_WORKSPACE = 128 << 20
"""Bytes of a float workspace that FlashInfer's documentation recommends."""


class WrapperTarget(ReleasedTarget):
    """One wrapper of the release that this process holds, in one mode."""

    package = "flashinfer"
    excuses = EXCUSES

    def __init__(self, name: str, wrapper: str, mode: Mode) -> None:
        self.name = name
        self._kind = KINDS[wrapper]
        self.about = f"{self._kind.about}, {mode} graphs"
        self.outputs_judged = {mode: ""}
        latent, verify = self._kind.attention == "mla", mode == "target_verify"
        has: dict[str, Any] = dict(
            modes=(mode,),
            page_sizes=self._kind.page_sizes,
            attentions=(self._kind.attention,),
            dtypes=("float16", "bfloat16"),
            kv_dtypes=self._kind.kv_dtypes,
            max_batch=8,
            max_context_len=LONGEST_CONTEXT,
            max_draft_tokens=4,
            max_spec_topk=self._kind.max_topk,
            # Where rows without queries are left unwritten, no server pads with them.
            seq_len_fill_values=(1,) if latent and verify else self._kind.fill_values,
            min_rope_dim=3,  # of four drawn columns, so that the two parts differ in width
            row_mixings=("none", "fp8_scale", "nan"),
        )
        self.capabilities = Capabilities(**has)

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        return (
            "the caller: one layer, and what a server pads",
            "what is compiled: planners and kernels, by models",
            "widths of rows, which the release's checks see rounded up",
        )

    def refused(self, config: EngineConfig) -> str | None:
        if config.attention == "mla" and config.v_head_dim >= config.head_dim:
            return f"v_head_dim={config.v_head_dim} leaves a latent row without a rotary part"
        if config.attention == "mha" and config.v_head_dim != config.head_dim:
            return f"v_head_dim={config.v_head_dim} differs from head_dim={config.head_dim}"
        return None

    def load(self) -> None:
        load("flashinfer.decode", "flashinfer.prefill", "flashinfer.mla")

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> WrapperSession:
        STANDS_FOR[float_workspace_bytes(config)] = _SERVERS_WORKSPACE
        return WrapperSession(config, graphs, self._kind)
