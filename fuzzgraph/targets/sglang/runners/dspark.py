"""DSpark's draft runner: a block is drafted by one forward, targets `sglang-dspark-draft-*`.

As DFLASH's, with a Markov head behind the model: the graph samples one token after the other, each
by the logits of its place and the token before it. A server that verifies `draft_tokens` + 1 tokens
of a row drafts blocks of `draft_tokens`; where its model does not sample at a block's first token,
both are as wide.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import NotInRelease
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.excuses.blocks import DSPARK_DRAFT_EXCUSES, VERIFIED_OFFSETS
from fuzzgraph.targets.sglang.fields import RANK_COUNTS
from fuzzgraph.targets.sglang.release import is_before
from fuzzgraph.targets.sglang.runners.dflash import BlockDraftSession, BlockDraftTarget, BlockModel
from fuzzgraph.targets.sglang.stubs.block_worker import BlockWorker
from fuzzgraph.targets.sglang.stubs.dspark_worker import (
    WORKER,
    DSparkWorker,
    demand_anchors,
    described,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.scheduler_ranks import SCHEDULER_RANKS
from fuzzgraph.world import Batch

_ASKS_FIRST = (0, 5, 23)
_OF_RANKS = ("num_token_non_padded", *RANK_COUNTS)
"""What a batch says of ranks, of which drafts that a rank makes by itself say nothing."""
_DRAFTS_BESIDE_RANKS = (0, 5, 19)
"""Before, drafts beside data-parallel ranks took no graph: nobody said that they can (sglang 0.5.17
dspark_draft.py, _fill_dp_moe_sync_metadata)."""
_NONE_HANDED = (
    "sglang 0.5.23 dspark_draft.py _run_forward: a backend that asks for no lengths on the host is "
    "handed none, and the graph's stay what they were"
)


class MarkovBlockModel(BlockModel):
    """A draft model of one layer, which embeds its tokens in its graph where the release's does."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        **named: Any,
    ) -> Any:
        if input_embeds is None and hasattr(self, "forward_embed"):
            input_embeds = self.forward_embed(input_ids)
        return super().forward(input_ids, positions, forward_batch, input_embeds, **named)


class DSparkDraftTarget(BlockDraftTarget):
    """DSpark's draft runner on one backend of the sglang release that this process holds."""

    algorithm = "DSPARK"
    worker = WORKER
    excuses = DSPARK_DRAFT_EXCUSES

    def __init__(self, name: str, backend: str) -> None:
        super().__init__(name, backend)
        self.capabilities = self.capabilities.replace(
            drafted_windows=False,
            samplings=("greedy", "draft"),
            given_anchors=True,
            max_dp_size=DATA_RANKS["max_dp_size"],
        )

    def modules(self) -> tuple[str, ...]:
        return (*super().modules(), SCHEDULER_RANKS)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DSparkDraftSession:
        return DSparkDraftSession(config, graphs, self.backend)


class DSparkDraftSession(BlockDraftSession):
    """DSpark's worker, its draft runner, and the backend on which the draft model attends."""

    algorithm = "DSPARK"
    worker = DSparkWorker
    _worker: DSparkWorker
    model = MarkovBlockModel

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: AttentionBackend) -> None:
        demand_anchors(config)
        if config.dp_size > 1 and is_before(_DRAFTS_BESIDE_RANKS):
            raise NotInRelease(
                "drafts of DSpark take graphs beside data-parallel ranks from sglang 0.5.19 on"
            )
        verified = config.draft_tokens + config.sample_from_anchor
        arguments = (("speculative_num_draft_tokens", verified), *kind.arguments)
        super().__init__(config, graphs, replace(kind, arguments=arguments))
        self.inputs = tuple(name for name in self.inputs if name not in _OF_RANKS)
        self.fields = tuple(field for field in self.fields if field.name not in _OF_RANKS)

    def _drafting(self) -> contextlib.AbstractContextManager[Any]:
        """The worker narrows the server to the ranks that share this rank's heads."""
        if self._config.dp_size == 1:
            return super()._drafting()
        scope: contextlib.AbstractContextManager[Any] = self._worker.engine._draft_context()
        return scope

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        seen.ranks_apart = True
        return seen

    def _open_backend(self, runner: ModelRunner) -> Any:
        anchored = self._config.sample_from_anchor
        drafts = self._config.draft_tokens - (not anchored)
        model = described(runner, self._config, drafts=drafts, anchored=anchored)
        runner.model_config.hf_config = runner.model_config.hf_text_config = model
        return super()._open_backend(runner)

    def _open_worker(self, runner: ModelRunner) -> BlockWorker:
        worker = super()._open_worker(runner)
        drafts = worker.engine.draft_model
        if hasattr(drafts, "forward_embed"):  # then graphs embed, by the same model
            runner.model.forward_embed = drafts.forward_embed
        return worker

    def _as_drafted(self, field: Field) -> Field:
        if field.name == "cu_seqlens_q" and self._kind.name == "trtllm_mha":
            return replace(field, repeats="", source=VERIFIED_OFFSETS, unjudged=VERIFIED_OFFSETS)
        return super()._as_drafted(field)

    def _on_host(self, field: Field) -> Field:
        if is_before(_ASKS_FIRST) or getattr(self.backend, "needs_cpu_seq_lens", True):
            return super()._on_host(field)
        return replace(field, repeats="", source=_NONE_HANDED, unjudged=_NONE_HANDED)

    @property
    def _counts(self) -> bool:
        """Whether the session shows how many blocks were counted."""
        return self._config.sampling == "draft" and self._worker.counts_blocks

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        counted = ("drawn_blocks",) if self._counts else ()
        return (*super().promised_outputs(mode), *counted)

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        # What reads the drafts of a graph gives the numbers once more.
        before = self._counted()
        found = super().shown_outputs()
        return found | (self._counted() if self.ran_eagerly else before)

    def _counted(self) -> dict[str, torch.Tensor]:
        if not self._counts:
            return {}
        return {"drawn_blocks": self._worker.counted_blocks(self._batch).clone()}

    @property
    def drafts(self) -> str:
        return "markov_tokens" if self._config.sample_from_anchor else "markov_drafts"
