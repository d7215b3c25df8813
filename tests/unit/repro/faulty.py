"""Engines with one thing changed, one for each kind of finding, and the cases that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.execution import Execution
from fuzzgraph.finding import Finding
from fuzzgraph.kernel_models.flash_attention import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.faults.forms import LengthsInInt64, OutputInHalf, StateNotSaved
from fuzzgraph.targets.builtin.faults.stale_plan import PlannedOnce
from fuzzgraph.targets.builtin.metadata.builder import BuilderComponents
from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices, KvView
from fuzzgraph.targets.builtin.metadata.page_table import PageTable, PageView
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.registry import BufferRegistry, GraphSlot, PaddingPolicy
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.context import Outputs
from fuzzgraph.targets.builtin.session import BuiltinSession
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.targets.builtin.slots import Slots
from fuzzgraph.world import Batch


class SmallIndices(KvIndices):
    def indices_capacity(self) -> int:
        return self.max_rows * self.row_width // 4


class RaisingIndices(KvIndices):
    """An operation that raises, once sequences are longer than at capture."""

    def write_indptr(self, view: KvView) -> None:
        super().write_indptr(view)
        if int(view.kv_lens.sum()) > 2 * view.rows:
            view.ends.copy_(torch.zeros(99, dtype=torch.int32))


class KeptRows(Slots):
    def req_pool_indices(self) -> GraphSlot:
        return replace(super().req_pool_indices(), policy=PaddingPolicy.KEEP)


class KeptWriteSlots(Slots):
    def out_cache_loc(self) -> GraphSlot:
        return replace(super().out_cache_loc(), policy=PaddingPolicy.KEEP)


class NoPositions(BuiltinModel):
    def project(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.embed.index_select(0, input_ids)


class ScalesByAKernelModel(BuiltinModel):
    """Attention by the model of a compiled kernel, which is passed twice the scale."""

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        paged = (-1, self.config.page_size, *self.kv.keys().shape[1:])
        assert batch.page_table is not None
        flash_attn_with_kvcache(
            q.unsqueeze(1),
            self.kv.keys().view(paged),
            self.kv.values().view(paged),
            cache_seqlens=batch.kv_lens,
            page_table=batch.page_table,
            softmax_scale=2 * batch.scale,
            out=out.unsqueeze(1),
        )


class ReadsBeyondItsKeys(BuiltinModel):
    """Attention by a model that calls another one's, which is passed two keys and more lengths."""

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        ends = torch.nn.functional.pad(batch.kv_lens.cumsum(0, dtype=torch.int32), (1, 0))
        flash_attn_varlen_func(
            q,
            self.kv.keys()[:2].clone(),
            self.kv.values()[:2].clone(),
            cu_seqlens_q=torch.arange(len(ends), dtype=torch.int32),
            cu_seqlens_k=ends,
            max_seqlen_q=1,
            max_seqlen_k=16,
            softmax_scale=batch.scale,
            out=out,
        )


class GraphForgetsPositions(GraphRunner):
    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        self.current().static.registry.buffers["positions"].zero_()


class PadsEagerBatches(GraphRunner):
    """Healthy: an eager batch has a padded row as well, which holds whatever was there."""

    padded = False

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        self.padded = False

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        return replace(seen, shown_tokens=seen.padded_tokens + 1) if self.padded else seen

    def eager(self, batch: Batch) -> None:
        super().eager(batch)
        self.padded = True
        self.outputs = {
            name: torch.cat((output, torch.full_like(output[:1], 1008.0)))
            for name, output in self.outputs.items()
        }


class RoundsEagerOtherwise(GraphRunner):
    """Healthy: an eager run adds up in another order, and the plan does not say so."""

    def eager(self, batch: Batch) -> None:
        super().eager(batch)
        self.outputs = {name: output * (1 + 2**-22) for name, output in self.outputs.items()}

    def observe(self, batch: Batch) -> Observation:
        return replace(super().observe(batch), plan={})


class GraphCountsOneMore(GraphRunner):
    """The first sequence is a token longer in the graph than the batch says."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        self.current().static.registry.buffers["seq_lens"][0] += 1


class NamesASlotTwice(KvIndices):
    """The first row names its first slot in place of its second one as well."""

    def write_indices(self, view: KvView) -> None:
        super().write_indices(view)
        view.indices[1:2].copy_(view.indices[:1])


class NamesAnotherPageOfTheRow(PageTable):
    """The first row's first entry is the page of its second one: its own, but out of place."""

    def write_table(self, view: PageView) -> None:
        super().write_table(view)
        view.table[:1, :1].copy_(view.table[:1, 1:2])


class FirstRowTooShort(KvIndices):
    def write_indptr(self, view: KvView) -> None:
        super().write_indptr(view)
        view.ends[:1].sub_(1)


class Declaring(BuiltinTarget):
    """Declares what lengths and offsets repeat, which the built-in engine leaves to their names."""

    def open(self, config: EngineConfig, graphs: GraphEngine) -> BuiltinSession:
        session = super().open(config, graphs)
        session.fields = tuple(
            replace(field, repeats="seq_lens") if field.name in ("seq_lens", "kv_indptr") else field
            for field in session.fields
        )
        return session


class Wavers(GraphRunner):
    """Healthy: the last bits change from replay to replay, as with atomic sums."""

    replays = 0

    def run_graph(self, size: int) -> Outputs:
        Wavers.replays += 1
        bits = 1 + Wavers.replays % 5 * torch.finfo(torch.float32).eps
        return {name: output * bits for name, output in super().run_graph(size).items()}


class PromisesOutputs(GraphRunner):
    def keeps_outputs(self) -> bool:
        return True


class CapturesLongRows(GraphRunner):
    def fill_dummies(self, registry: BufferRegistry, extent: Extent) -> None:
        super().fill_dummies(registry, extent)
        registry.view("seq_lens", extent).fill_(3)


class Reallocates(GraphRunner):
    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        buffers = self.current().static.registry.buffers
        buffers["seq_lens"] = buffers["seq_lens"].clone()


def engine(**changes: Any) -> BuiltinTarget:
    return BuiltinTarget(replace(Components(), **changes))


def declaring(**changes: Any) -> BuiltinTarget:
    return Declaring(replace(Components(), **changes))


def indices(kind: type[KvIndices]) -> BuiltinTarget:
    return engine(builder_components=BuilderComponents(kv_indices=kind))


def rows(*lengths: int) -> tuple[BatchRow, ...]:
    return tuple(BatchRow(request=i, seq_len=length) for i, length in enumerate(lengths))


def case(*steps: ReplayStep, **config: Any) -> Case:
    settings: dict[str, Any] = {"capture_bs": (2,), "req_pool_size": 3, "kv_pool_pages": 24}
    settings |= config
    return validate(Case(schema_version=1, config=EngineConfig(**settings), steps=steps))


def shrinking(**config: Any) -> Case:
    """Two requests, then one of them."""
    return case(ReplayStep(rows=rows(4, 3)), ReplayStep(finish=(1,), rows=rows(5)), **config)


def once(*lengths: int, **config: Any) -> Case:
    return case(ReplayStep(rows=rows(*lengths)), **config)


@dataclass(frozen=True)
class Kind:
    """A finding that is to be exported: where it comes from and which one it is."""

    name: str
    target: Callable[[], BuiltinTarget]
    case: Case
    oracle: str
    buffer: str
    """Part of the finding's buffer."""
    says: str
    """What the script's own measurement must print."""

    def finding(self) -> Finding:
        findings = Execution(self.target(), cache_size=0).run_case(self.case).findings
        return next(f for f in findings if f.oracle == self.oracle and self.buffer in f.buffer)


KINDS = (
    Kind(
        "red-zone", lambda: indices(SmallIndices), once(9, 9), "footprint", "kv_indices",
        "elements written past the end of decode.kv_indices up to offset",
    ),
    Kind(
        "foreign-write", lambda: engine(slots=KeptWriteSlots), shrinking(free_padding="zero"),
        "footprint", "kv_pool",
        "changed, which the batch does not own",
    ),
    Kind(
        "reads", lambda: engine(slots=KeptRows), shrinking(), "noninterference", "kv_indices",
        "kv_indices[",
    ),
    Kind(
        "history", lambda: engine(slots=KeptRows), shrinking(), "history", "req_pool_indices",
        "req_pool_indices[1]: got 4, expected 0 (1 element differs) without the past",
    ),
    Kind(
        "kept-output", lambda: engine(decode=PromisesOutputs),
        case(ReplayStep(rows=rows(4, 3)), ReplayStep(rows=rows(5, 4))), "history", "attention",
        "attention handed out at step 0 was changed by this replay",
    ),
    Kind(
        "contract", lambda: engine(slots=KeptRows), shrinking(), "contract", "req_pool_indices",
        "req_pool_indices[1] of a padded row is 4, must be the reserved value 0",
    ),
    Kind(
        "repeats", lambda: declaring(decode=GraphCountsOneMore), once(4, 3), "contract", "seq_lens",
        "seq_lens[0] is 5, the batch says 4",
    ),
    Kind(
        "offset-steps",
        lambda: declaring(builder_components=BuilderComponents(kv_indices=FirstRowTooShort)),
        once(4, 3), "contract", "kv_indptr",
        "kv_indptr gives row 0 3 entries, the batch says 4",
    ),
    Kind(
        "slot-twice", lambda: indices(NamesASlotTwice), once(4, 3), "contract", "kv_indices",
        "kv_indices of row 0 holds slot 3 2 times",
    ),
    Kind(
        "page-out-of-place",
        lambda: engine(builder_components=BuilderComponents(page_table=NamesAnotherPageOfTheRow)),
        once(5, 3, page_size=2, page_map="page_table"), "contract", "page_table",
        "page_table[0, 0] is page 4, the row's page there is 3",
    ),
    Kind(
        "at-capture", lambda: engine(decode=CapturesLongRows), once(4), "contract", "seq_lens",
        "seq_lens[0]: got 3, expected 1 (2 elements differ) at capture, by the rule that",
    ),
    Kind(
        "address", lambda: engine(decode=Reallocates), once(4, 3), "contract", "seq_lens",
        "lies at another address than the graph captured",
    ),
    Kind(
        "computes", lambda: engine(model=NoPositions), once(4, 3), "reference", "attention",
        "attention[",
    ),
    Kind(
        "new-kv", lambda: engine(model=NoPositions), once(4, 3), "reference", "kv_pool",
        "of the batch do not hold what the model defines for its new tokens",
    ),
    Kind(
        "eager", lambda: engine(decode=GraphForgetsPositions), once(4, 3), "eager", "attention",
        "attention[",
    ),
    Kind(
        "form", lambda: engine(model=OutputInHalf), once(4, 3), "reference", "attention",
        "has dtype bfloat16, the model computes it in float32",
    ),
    Kind(
        "dtype", lambda: engine(slots=LengthsInInt64), once(4, 3), "contract", "seq_lens",
        "seq_lens must be int32; got int64",
    ),
    Kind(
        "new-state", lambda: engine(model=StateNotSaved), once(4, 3, recurrent_state=True),
        "reference", "state_pool", "do not hold what the model defines",
    ),
    Kind(
        "left-over", lambda: engine(builder_components=BuilderComponents(plan=PlannedOnce)),
        once(4, 3, split_kv=2), "history", "attention",
        "once what the previous replay left was changed",
    ),
    Kind(
        "survival", lambda: indices(RaisingIndices), once(9, 9), "survival", "",
        "raised RuntimeError",
    ),
    Kind(
        "triton", lambda: engine(slots=KeptRows), shrinking(kernels="triton"), "noninterference",
        "kv_indices", "kv_indices[",
    ),
    Kind(
        "kernel-model", lambda: engine(model=ScalesByAKernelModel),
        once(5, 3, page_size=2, page_map="page_table"), "reference", "attention", "attention[",
    ),
)  # fmt: skip
