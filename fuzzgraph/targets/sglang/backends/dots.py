"""Latent attention behind a window beside latent attention over all rows, on FlashAttention 3.

As servers have it for a Dots model without an indexer: `DotsSWAMLAAttnBackend`, which the engine's
own `wrap_dots_attention_backend` puts around `FlashAttentionBackend`. The layer behind the window
gathers its rows and masks its scores by Triton kernels of the engine, which run, and multiplies in
torch. Modelled: FlashAttention 3. The engine's hybrid pool of latent rows is real.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    BackendSession,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA3_MLA
from fuzzgraph.targets.sglang.latent_window_draft_model import LatentWindowDraftModel
from fuzzgraph.targets.sglang.latent_window_model import LatentWindowModel
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

__all__ = ["DOTS", "DRAFTS", "WRAPPER", "DotsSession", "DotsTarget"]

WRAPPER = f"{ATTENTION}.dots_hybrid_backend"
_PAGE = 64
"""sglang dots_hybrid_backend.py, forward_swa_mla_absorbed."""
DRAFTS = 4
"""Tokens of a row with several that masks are made for (sglang swa_mla_fallback/forward.py)."""


def _refuses(config: EngineConfig) -> str | None:
    if not config.swa_window:
        return "the model has a layer behind a window: swa_window must be positive"
    several = {"target_verify", "draft_extend"} & set(config.modes)
    if several and config.draft_tokens != DRAFTS:
        return f"draft_tokens={config.draft_tokens}: rows with drafts have {DRAFTS} tokens"
    return None


def _dots_model(runner: ModelRunner) -> None:
    """A model without an indexer, as its description tells the engine of it."""
    runner.model_config.hf_text_config.index_topk = None


DOTS = replace(
    FA3_MLA,
    part=" over latent rows and a window",
    page_sizes=(_PAGE,),
    max_topk=1,
    windows=True,
    unified=False,
    refuses=_refuses,
    adapt=_dots_model,
    model=LatentWindowModel,
    draft_model=LatentWindowDraftModel,
    beside=(),
    stood_in_for=("FlashAttention 3 and its planner, by models", "projections and the gate"),
    more=(("swa_only", True), ("swa_page_sizes", (0,))),
)


class DotsSession(BackendSession):
    """One wrapped backend and one decode runner with its captured graphs."""

    def _open_backend(self, runner: ModelRunner) -> Any:
        latent = super()._open_backend(runner)
        return engine_module(WRAPPER).wrap_dots_attention_backend(runner, latent)


class DotsTarget(BackendTarget):
    """Both layers on the sglang release that this process holds, in one mode."""

    def __init__(self, name: str, mode: Mode) -> None:
        super().__init__(name, DOTS, mode)
        self.capabilities = self.capabilities.replace(
            later_stages=False, two_batch_overlap=False, min_draft_tokens=DRAFTS
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DotsSession:
        return DotsSession(config, graphs, self.backend)

    def modules(self) -> tuple[str, ...]:
        return (*super().modules(), WRAPPER)
