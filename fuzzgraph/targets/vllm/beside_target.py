"""Targets on models that have attention beside recurrent layers."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.ports import GraphEngine
from fuzzgraph.recurrent_layers.delta_rule import DELTA_COLUMNS, DELTA_WIDTH
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.vllm.beside_model import DeltaNetBesideAttention, MixerBesideAttention
from fuzzgraph.targets.vllm.beside_session import (
    DeltaNetBesideAttentionSession,
    MixerBesideAttentionSession,
)
from fuzzgraph.targets.vllm.gdn_model import LAYERS, layer_module
from fuzzgraph.targets.vllm.recurrent_target import (
    DRIVEN,
    VERIFIED,
    DeltaNetTarget,
    Mamba2Target,
)
from fuzzgraph.targets.vllm.release import VLLM, release
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.stubs.flash_attention import put_flash_attention
from fuzzgraph.targets.vllm.stubs.platform import HOPPER
from fuzzgraph.targets.vllm.target import FlashAttentionTarget, TritonTarget, VllmTarget

_PAGES: dict[str, Any] = {"page_sizes": (16, 32), "max_q_heads": 4, "max_head_dim": 16}
_BESIDE = DRIVEN.replace(**_PAGES)
_STATE = {"min_page_numbers": DELTA_WIDTH + (CONV_WIDTH - 1) * DELTA_COLUMNS}


class _BesideAttention(Mamba2Target):
    """With the attention backend of another target."""

    beside: type[VllmTarget] = TritonTarget
    """The target whose backend it is."""

    def refused(self, config: EngineConfig) -> str | None:
        return VllmTarget.refused(self, config) or super().refused(config)

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            VLLM.load(self.beside.module)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        path = f"{self.beside.module}.{self.beside.backend}"
        return self.session(config, graphs, path, self.attention, self.device)


class Mamba2HybridTarget(_BesideAttention):
    """A Mamba2 layer, as in Nemotron-H, Bamba and Zamba2."""

    kernels = "Mamba2 layer beside Triton attention"
    model = MixerBesideAttention
    session = MixerBesideAttentionSession
    driven = _BESIDE


class Mamba2FlashHybridTarget(Mamba2HybridTarget):
    """The same beside FlashAttention, as on a Hopper GPU."""

    kernels = "Mamba2 layer beside FlashAttention 3"
    beside = FlashAttentionTarget
    also_stood_in_for = FlashAttentionTarget.also_stood_in_for

    def load(self) -> None:
        super().load()
        put_flash_attention(self.beside.module)


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


class DeltaNetFlashHybridTarget(DeltaNetHybridTarget):
    """The same beside FlashAttention, as on a Hopper GPU, with `--gdn-prefill-backend triton`."""

    kernels = "gated delta net beside FlashAttention 3"
    beside = FlashAttentionTarget
    device = HOPPER
    also_stood_in_for = (
        *DeltaNetHybridTarget.also_stood_in_for,
        *FlashAttentionTarget.also_stood_in_for,
    )

    def load(self) -> None:
        super().load()
        if layer_module() == LAYERS[-1][0]:
            raise AdapterUnavailable(
                f"vLLM {release()} computes prompts of a delta net by FlashInfer on a Hopper GPU, "
                f"whatever a server says, and target {self.name!r} has no such kernel. Name a "
                "later release, for example --release 0.33.0."
            )
        put_flash_attention(self.beside.module)
