"""Target `vllm-eagle-draft`: drafts that the V1 runner's proposer grows."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.vllm.attention_model import register
from fuzzgraph.targets.vllm.draft_models import DraftLayer
from fuzzgraph.targets.vllm.eagle_session import EagleSession
from fuzzgraph.targets.vllm.piecewise_target import FlashAttentionBreakableTarget
from fuzzgraph.targets.vllm.release import VLLM, engine_module, release

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
        self._demand_pages_of_one_token()

    def _demand_pages_of_one_token(self) -> None:
        """
        Raises:
            AdapterUnavailable: the backend makes no cache with them.
        """
        backend = getattr(engine_module(self.module), self.backend)
        if not hasattr(backend, "get_kv_cache_shape"):
            return  # later releases derive it from the group's own page
        try:
            backend.get_kv_cache_shape(1, 1, 1, 1)
        except ValueError:
            raise AdapterUnavailable(
                f"vLLM {release()} has no pages of one token on {self.backend}, which target "
                f"{self.name!r} drives. Name a release that has them: fuzzgraph targets lists them."
            ) from None
