"""Target `vllm-eagle-draft`: drafts that the V1 runner's proposer grows."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.targets.vllm.attention_model import register
from fuzzgraph.targets.vllm.draft_models import DraftLayer
from fuzzgraph.targets.vllm.eagle_session import EagleSession
from fuzzgraph.targets.vllm.piecewise_target import FlashAttentionBreakableTarget
from fuzzgraph.targets.vllm.release import VLLM

_PROPOSER = "vllm.v1.spec_decode.eagle"


class EagleDraftTarget(FlashAttentionBreakableTarget):
    """`--speculative-config` with the method eagle, on FlashAttention.

    A page is one token's, which the kernels take and the backend does not offer: a case's drafts
    have pages of their own, and the engine puts them behind the last token.
    """

    also_stood_in_for = (
        *FlashAttentionBreakableTarget.also_stood_in_for,
        "the target model, which has no layer",
        "the backend's rule that a page has 16 tokens or more",
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.session = EagleSession
        self.model = EagleSession.model_class
        self.about = f"EagleProposer of the V1 runner, {self.kernels}"
        self.capabilities = Capabilities(
            modes=("draft",),
            page_sizes=(1,),
            dtypes=("float32", "float16"),
            max_batch=8,
            max_context_len=64,
            max_q_heads=4,
            max_head_dim=16,
            max_spec_steps=4,
            capture_beyond_pool=False,
        )

    def load(self) -> None:
        super().load()
        VLLM.load(_PROPOSER)
        register(DraftLayer)
