"""Targets on models that have attention beside recurrent layers."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.delta_rule import DELTA_COLUMNS, DELTA_WIDTH
from fuzzgraph.ports import GraphEngine
from fuzzgraph.recurrence import CONV_WIDTH
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.vllm.beside_model import DeltaNetBesideAttention, MixerBesideAttention
from fuzzgraph.targets.vllm.beside_session import (
    DeltaNetBesideAttentionSession,
    MixerBesideAttentionSession,
)
from fuzzgraph.targets.vllm.recurrent_target import (
    DRIVEN,
    VERIFIED,
    DeltaNetTarget,
    Mamba2Target,
)
from fuzzgraph.targets.vllm.release import VLLM
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import TritonTarget, VllmTarget

_PAGES: dict[str, Any] = {"page_sizes": (16, 32), "max_q_heads": 4, "max_head_dim": 16}
_BESIDE = DRIVEN.replace(**_PAGES)
_STATE = {"min_page_numbers": DELTA_WIDTH + (CONV_WIDTH - 1) * DELTA_COLUMNS}


class _BesideAttention(Mamba2Target):
    """With `--attention-backend TRITON_ATTN`."""

    def refused(self, config: EngineConfig) -> str | None:
        return VllmTarget.refused(self, config) or super().refused(config)

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            VLLM.load(TritonTarget.module)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        path = f"{TritonTarget.module}.{TritonTarget.backend}"
        return self.session(config, graphs, path, self.attention, self.device)


class Mamba2HybridTarget(_BesideAttention):
    """A Mamba2 layer, as in Nemotron-H, Bamba and Zamba2."""

    kernels = "Mamba2 layer beside Triton attention"
    model = MixerBesideAttention
    session = MixerBesideAttentionSession
    driven = _BESIDE


class DeltaNetHybridTarget(_BesideAttention, DeltaNetTarget):
    """A gated delta net, as in Qwen3-Next.

    The engine makes blocks larger where a state does not fit into a page.
    """

    kernels = "gated delta net beside Triton attention"
    model = DeltaNetBesideAttention
    session = DeltaNetBesideAttentionSession
    driven = _BESIDE.replace(**_STATE)
    # The convolution keeps an input more for each draft.
    verified = VERIFIED.replace(**_PAGES, **_STATE, page_numbers_per_draft=DELTA_COLUMNS)
