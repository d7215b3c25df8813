"""The targets on vLLM's runners whose graphs break at attention."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.vllm.piecewise_session import (
    BreakableSession,
    FullAndPiecewiseSession,
    PiecewiseSession,
)
from fuzzgraph.targets.vllm.release import engine_module, has_module, release
from fuzzgraph.targets.vllm.runner_session import RUNNER
from fuzzgraph.targets.vllm.target import FlashAttentionTarget, TritonTarget, VllmTarget
from fuzzgraph.targets.vllm.v2_breakable import V2BreakableSession
from fuzzgraph.targets.vllm.v2_fields import EXCUSES
from fuzzgraph.targets.vllm.v2_session import V2_RUNNER

_BREAKABLE = "vllm.compilation.breakable_cudagraph"
_SESSIONS: Mapping[str, type[PiecewiseSession]] = {
    "piecewise": PiecewiseSession,
    "full_and_piecewise": FullAndPiecewiseSession,
}
_ABOUT = {
    "piecewise": "graphs split at attention",
    "full_and_piecewise": "split at attention, and full graphs",
}


class _InPieces(VllmTarget):
    """Batches of any kind, as the compiler's backend cuts the model; they are padded by tokens."""

    stood_in_for_splitting = (
        "torch's compiler: its tracer gives the graph that the engine splits and wraps",
    )

    def __init__(self, name: str, graphs: Literal["piecewise", "full_and_piecewise"]) -> None:
        super().__init__(name, "prefill")
        self.session = _SESSIONS[graphs]
        self.model = self.session.model_class
        self.about = f"{self.generation} runner, {self.kernels}, {_ABOUT[graphs]}"

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        return (*super().stood_in_for, *self.stood_in_for_splitting)

    def load(self) -> None:
        super().load()
        if not hasattr(engine_module(RUNNER).GPUModelRunner, "_get_slot_mappings"):
            raise AdapterUnavailable(
                f"vLLM {release()} hands no slots to the pieces of a graph, which target "
                f"{self.name!r} shows. Name a later release, for example --release 0.33.0."
            )


class _Breakable(VllmTarget):
    """Batches of any kind, with `VLLM_USE_BREAKABLE_CUDAGRAPH=1`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "prefill")
        self.session = BreakableSession
        self.model = self.session.model_class
        self.about = f"{self.generation} runner, {self.kernels}, breakable graphs"

    def load(self) -> None:
        super().load()
        if not has_module(_BREAKABLE):
            raise AdapterUnavailable(
                f"vLLM {release()} has no breakable graphs, which target {self.name!r} drives. "
                "Name a release that has them: fuzzgraph targets lists them."
            )


class _V2Breakable(_Breakable):
    """The same with `VLLM_USE_V2_MODEL_RUNNER=1`."""

    runner = V2_RUNNER
    generation = "V2"
    excuses = EXCUSES

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.session = V2BreakableSession


class TritonPiecewiseTarget(_InPieces, TritonTarget):
    """With `--attention-backend TRITON_ATTN`; not with KV in FP8, see FlashAttention's."""

    more = MappingProxyType({})


class TritonBreakableTarget(_Breakable, TritonTarget):
    """With `--attention-backend TRITON_ATTN`."""


class FlashAttentionPiecewiseTarget(_InPieces, FlashAttentionTarget):
    """With `--attention-backend FLASH_ATTN`; not with KV in FP8, for what quantises queries is
    compiled there, by a compiler that asks the device."""

    more = MappingProxyType({})


class FlashAttentionBreakableTarget(_Breakable, FlashAttentionTarget):
    """With `--attention-backend FLASH_ATTN`."""


class V2TritonBreakableTarget(_V2Breakable, TritonTarget):
    """With `--attention-backend TRITON_ATTN`."""


class V2FlashAttentionBreakableTarget(_V2Breakable, FlashAttentionTarget):
    """With `--attention-backend FLASH_ATTN`."""
