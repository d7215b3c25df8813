"""Targets `vllm-eagle-draft*`: drafts that the V1 runner's proposer grows."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT
from fuzzgraph.targets.vllm.attention_model import register
from fuzzgraph.targets.vllm.draft_models import DraftLayer
from fuzzgraph.targets.vllm.eagle_session import EagleBreakableSession, EagleSession
from fuzzgraph.targets.vllm.piecewise_target import (
    FlashAttentionBreakableTarget,
    FlashAttentionPiecewiseTarget,
)
from fuzzgraph.targets.vllm.release import VLLM
from fuzzgraph.targets.vllm.target import FlashAttentionTarget

_PROPOSER = "vllm.v1.spec_decode.eagle"
DRIVEN = Capabilities(
    modes=("draft", "idle"),
    page_sizes=(1,),
    dtypes=("float32", "float16"),
    max_batch=8,
    max_context_len=LONGEST_CONTEXT,
    max_q_heads=4,
    max_head_dim=16,
    max_spec_steps=4,
    capture_beyond_pool=False,
)


class _Drafts(FlashAttentionTarget):
    """`--speculative-config` with the method eagle, on FlashAttention.

    A page is one token's, which the kernels take and the backend does not offer: a case's drafts
    have pages of their own, and the engine puts them behind the last token.
    """

    also_stood_in_for = (
        *FlashAttentionTarget.also_stood_in_for,
        "the target model, which has no layer",
        "the backend's rule that a page has 16 tokens or more",
    )

    def _drive(self, session: type[EagleSession], graphs: str) -> None:
        self.session = session
        self.model = session.model_class
        self.about = f"V1's EagleProposer, {self.kernels}, {graphs}"
        self.capabilities = DRIVEN

    def load(self) -> None:
        super().load()
        VLLM.load(_PROPOSER)
        register(DraftLayer)


class EagleDraftTarget(_Drafts, FlashAttentionPiecewiseTarget):
    """The draft model as the compiler's backend cuts it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "piecewise")
        self._drive(EagleSession, "graphs split at attention")


class EagleBreakableDraftTarget(_Drafts, FlashAttentionBreakableTarget):
    """With `VLLM_USE_BREAKABLE_CUDAGRAPH=1`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._drive(EagleBreakableSession, "breakable graphs")
