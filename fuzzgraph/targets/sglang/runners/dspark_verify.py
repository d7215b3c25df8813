"""The verify of DSpark's blocks, and what follows it in the same step: targets
`sglang-dspark-verify-*`.

A server verifies whole blocks unless it is told to cut them (`SGLANG_RAGGED_VERIFY_MODE=static`),
on graphs of one row for each request. Then accepting drafts, the lengths behind them, and what the
draft model keeps of the tokens that stay are made behind the replay, by kernels of DSpark's own.

With a budget (`verify_budget`) the engine's planner shares tokens out by how sure the draft model
is of its drafts. Either drafts are cut off behind the verify (`cap-accept`), or before it
(`compact`): then tokens of rows of any length lie one behind the other in graphs that are captured
by tokens, and drafts are accepted inside of these.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.verify_budgets import BY_TOKENS
from fuzzgraph.errors import NotInRelease
from fuzzgraph.fields import TOLD
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend
from fuzzgraph.targets.sglang.excuses.blocks import DSPARK_VERIFY_EXCUSES
from fuzzgraph.targets.sglang.release import is_before
from fuzzgraph.targets.sglang.runners.capture import size_of
from fuzzgraph.targets.sglang.runners.dflash import FROM
from fuzzgraph.targets.sglang.runners.dflash_verify import BlockVerifySession, BlockVerifyTarget
from fuzzgraph.targets.sglang.stubs.dspark_worker import WORKER, DSparkVerifyWorker
from fuzzgraph.targets.sglang.stubs.platform import in_environment
from fuzzgraph.targets.sglang.stubs.verify_budget import MODES, agreed_tokens
from fuzzgraph.targets.sglang.stubs.verify_worker import OF_TOKENS
from fuzzgraph.world import Batch

_DRAWS_IN_GRAPHS = (0, 5, 17)
_CAPTURES_BY_TOKENS = ("fa3", "fa4", "trtllm_mha")
"""Backends that say so (sglang base_attn_backend.py, supports_ragged_verify_graph)."""
_LAST_ROW = (
    "sglang ragged_verify.py padded_to_bucket: padded rows share the tokens of the graph that no "
    "row has; without padded rows the last one gets them"
)
_COUNT = "num_token_non_padded"
_ALL_COUNT = (
    "sglang decode_cuda_graph_runner.py load_batch: tokens come padded to the graph's number, and"
    " all of them count"
)
_EXPERTS_ALONE = (
    "dspark_worker_v2.py refuses graphs by tokens beside data-parallel ranks unless the draft model"
    " is DeepSeek V4's, whose target attends by dsv4"
)
_CUT_HERE = (
    "sglang dspark_verify.py _run_ragged: lengths on the host are those behind the row's tokens"
)
_NONE_HANDED = (
    "sglang dspark_verify.py _run_ragged: where no backend asks for lengths on the host it is "
    "handed none, and the graph's stay what they were"
)


class DSparkVerifyTarget(BlockVerifyTarget):
    """DSpark's verify on one backend of the sglang release that this process holds."""

    algorithm = "DSPARK"
    worker = WORKER
    excuses = DSPARK_VERIFY_EXCUSES
    translates_on = (*BlockVerifyTarget.translates_on, "fa4")

    def __init__(self, name: str, backend: str) -> None:
        super().__init__(name, backend)
        by_tokens = BY_TOKENS if self.backend.name in _CAPTURES_BY_TOKENS else ()
        self.capabilities = self.capabilities.replace(
            samplings=("greedy", "draft"),
            drafted_windows=False,
            verify_budgets=("none", "cap_accept", *by_tokens),
        )

    def unserved(self, config: EngineConfig) -> str | None:
        if config.dp_size > 1 and config.verify_budget in BY_TOKENS:
            return _EXPERTS_ALONE
        return super().unserved(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DSparkVerifySession:
        by_tokens = config.verify_budget in BY_TOKENS
        kind = DSparkTokensSession if by_tokens else DSparkVerifySession
        return kind(config, graphs, self.backend)


class DSparkVerifySession(BlockVerifySession):
    """DSpark's worker, its target model's runner, and the backend on which that model attends."""

    algorithm = "DSPARK"
    worker = DSparkVerifyWorker
    serves_ranks_from = FROM
    idle_guard = ""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: AttentionBackend) -> None:
        if config.sampling != "greedy" and is_before(_DRAWS_IN_GRAPHS):
            # Before, drafts of such batches are drawn behind the graph, which has them here.
            raise NotInRelease("drafts that are drawn are verified from sglang 0.5.17 on")
        if config.verify_budget != "verify_all":  # that of a server without a profile of its steps
            profile = (("speculative_dspark_sps_table_path", "profile.json"),)
            kind = replace(kind, arguments=(*kind.arguments, *profile))
        super().__init__(config, graphs, kind)

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        mode = MODES[self._config.verify_budget]
        return in_environment({"SGLANG_RAGGED_VERIFY_MODE": mode}, super().engine_runs(batch))


class DSparkTokensSession(DSparkVerifySession):
    """The same with graphs that are captured by tokens, for rows of any length."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: AttentionBackend) -> None:
        super().__init__(config, graphs, kind)
        lens = "cache_seqlens"
        named = {lens: Field(lens, "requests", "length", fields.FREE, False, _LAST_ROW, TOLD)}
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            named[name] = fields.offsets(name, repeats=TOLD, source=_LAST_ROW)
        named["page_table"] = fields.page_table(whole_rows=True, source=_LAST_ROW)
        named[_COUNT] = fields.value(_COUNT, repeats=TOLD, source=_ALL_COUNT)
        self.fields = tuple(named.get(field.name, field) for field in self.fields)

    def _as_verified(self, field: Field, mirrored: bool, fill: int) -> Field:
        if field.name != "seq_lens_cpu":
            return field
        if mirrored:
            return replace(field, repeats="seq_lens", source=_CUT_HERE)
        return replace(field, repeats="", source=_NONE_HANDED, unjudged=_NONE_HANDED)

    def _runs(self, batch: Batch) -> Any:
        """Batches that no graph has room for are what they are in a server with graphs."""
        engine = self.runner._engine
        if not self.ran_eagerly or batch.largest_rank <= self._config.capture_bs[-1]:
            return super()._runs(batch)
        known = {name: getattr(engine, name) for name in OF_TOKENS}
        return Stub(can_run_graph=lambda _: False, **known)

    @property
    def _size(self) -> int | None:
        return None if self.ran_eagerly else size_of(self.graph_key())

    def _padded_tokens(self, padded_bs: int) -> int:
        return size_of(self.graph_key())

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        taken = batch.new_lens.copy()
        if batch.raw_bs == seen.padded_bs:
            taken[-1:] += seen.padded_tokens - batch.num_tokens
        lens = (batch.cached_lens + taken).tolist()
        seen.told = {
            "cache_seqlens": lens, "cu_seqlens_q": taken.tolist(), "cu_seqlens_k": lens,
            _COUNT: [seen.padded_tokens],
        }  # fmt: skip
        seen.agreed_tokens = agreed_tokens(batch, self._config)
        return seen
