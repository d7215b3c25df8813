"""The targets on vLLM's V2 runner."""

from __future__ import annotations

from fuzzgraph.case import Mode
from fuzzgraph.targets.vllm.release import VLLM
from fuzzgraph.targets.vllm.target import (
    FlashAttentionMlaTarget,
    FlashAttentionTarget,
    TritonMlaTarget,
    TritonTarget,
    VllmTarget,
)
from fuzzgraph.targets.vllm.v2_fields import EXCUSES
from fuzzgraph.targets.vllm.v2_session import V2_RUNNER, V2RunnerSession
from fuzzgraph.targets.vllm.v2_verify import NGRAM, V2VerifySession


class _OnV2(VllmTarget):
    """`VLLM_USE_V2_MODEL_RUNNER=1`."""

    runner = V2_RUNNER
    generation = "V2"
    most_ranks = 1
    excuses = EXCUSES

    def __init__(self, name: str, mode: Mode = "decode") -> None:
        super().__init__(name, mode)
        self.session = V2VerifySession if mode == "target_verify" else V2RunnerSession

    def load(self) -> None:
        super().load()
        if self.mode == "target_verify":
            VLLM.module(NGRAM)


class V2TritonTarget(_OnV2, TritonTarget):
    """With `--attention-backend TRITON_ATTN`."""


class V2FlashAttentionTarget(_OnV2, FlashAttentionTarget):
    """With `--attention-backend FLASH_ATTN`."""


class V2TritonMlaTarget(_OnV2, TritonMlaTarget):
    """With `--attention-backend TRITON_MLA`."""


class V2FlashAttentionMlaTarget(_OnV2, FlashAttentionMlaTarget):
    """With `--attention-backend FLASH_ATTN_MLA`."""
