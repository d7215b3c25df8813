"""Targets `vllm-v2-eagle-draft*`: drafts that the V2 runner's speculator grows."""

from __future__ import annotations

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.handover import Excuse
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.vllm.attention_model import register
from fuzzgraph.targets.vllm.eagle_target import DRIVEN
from fuzzgraph.targets.vllm.release import VLLM, engine_module, release
from fuzzgraph.targets.vllm.served_requests import SCHEDULER
from fuzzgraph.targets.vllm.target import FlashAttentionTarget, TritonTarget, VllmTarget
from fuzzgraph.targets.vllm.v2_draft_models import DraftLayerInGraphs, VerifiedFor
from fuzzgraph.targets.vllm.v2_eagle_session import V2EagleSession
from fuzzgraph.targets.vllm.v2_session import V2_RUNNER

_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.eagle.speculator"
_FIRST_GRAPHS = "prefill_cudagraph_manager"
_PLANS = "vLLM gpu/spec_decode, speculator.py _fused_multi_step_decode"
_ANEW = "without a graph a plan is made once more; what attention computes by one is judged"


class _Drafts(VllmTarget):
    """`--speculative-config` with the method eagle, with full graphs."""

    runner = V2_RUNNER
    generation = "V2"
    session = V2EagleSession
    model = VerifiedFor
    drafting_stood_in_for = (
        "the target model, which has no layer",
        "the backend's rule that a page has 16 tokens or more",
    )

    def __init__(self, name: str) -> None:
        super().__init__(name, "draft")
        self.about = f"V2's EagleSpeculator, {self.kernels}, full graphs"
        self.capabilities = DRIVEN.replace(max_batch=self.max_batch, preemption=True)

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        return (*super().stood_in_for, *self.drafting_stood_in_for)

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            VLLM.load(_SPECULATOR, SCHEDULER)
        opening = engine_module(_SPECULATOR).EagleSpeculator.__init__
        if _FIRST_GRAPHS not in opening.__code__.co_names:
            raise AdapterUnavailable(
                f"vLLM {release()} has no graphs of a draft's first forward, which target "
                f"{self.name!r} shows. Name a later release, for example --release 0.33.0."
            )
        register(DraftLayerInGraphs)


class V2EagleDraftTarget(_Drafts, FlashAttentionTarget):
    """On FlashAttention, by models of its kernels."""

    excuses = (
        Excuse("get_scheduler_metadata*", "missing", _PLANS, _ANEW),
        Excuse("get_scheduler_metadata*", "live", _PLANS, _ANEW),
    )


class V2TritonEagleDraftTarget(_Drafts, TritonTarget):
    """On Triton attention, with its kernels."""
