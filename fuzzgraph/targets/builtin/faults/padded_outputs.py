"""Padded rows that come out undefined: harmless until a layer behind attention mixes rows."""

from __future__ import annotations

import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.runners.prefill import BreakableRunner


def _in_decode(batch: AttentionBatch) -> bool:
    """Whether a launch is attention of decode over its own keys, where padded rows alone have
    none."""
    return batch.qo_indptr is None and batch.causal


def _without_keys(batch: AttentionBatch) -> torch.Tensor:
    """[rows, 1, 1] whether a row has length 0."""
    return (batch.kv_lens == 0)[:, None, None]


class SkipsEmptyRows(BuiltinModel):
    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        undefined = out.clone()
        super().attention(q, out, batch)
        if _in_decode(batch):
            out.copy_(torch.where(_without_keys(batch), undefined, out))


class SoftmaxOfNothing(BuiltinModel):
    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        super().attention(q, out, batch)
        if _in_decode(batch):
            out.masked_fill_(_without_keys(batch), float("nan"))
        elif batch.causal and batch.qo_indptr is not None:
            tokens = torch.arange(len(out), device=out.device, dtype=batch.qo_indptr.dtype)
            rows = torch.searchsorted(batch.qo_indptr, tokens, right=True) - 1
            empty = torch.nn.functional.pad(batch.kv_lens == 0, (0, 1))  # and tokens of no row
            out.masked_fill_(empty.index_select(0, rows)[:, None, None], float("nan"))


class DividesByWeights(BuiltinModel):
    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        super().attention(q, out, batch)
        if _in_decode(batch):
            out.div_(~_without_keys(batch))


class BreakLeavesTail(BreakableRunner):
    def allocate_attention_out(self) -> torch.Tensor:
        return torch.empty_like(super().allocate_attention_out())

    def clear_tail(self, live: int, padded: int) -> None:
        """Left out: what lies behind the live rows stays."""


FAULTS = (
    Fault(
        name="vllm-pr-37442-empty-rows-unwritten",
        source="vLLM PR 37442: MLA decode kernels write nothing for padded rows of length 0, and"
        " what is left there reaches live rows through one FP8 scale over the batch",
        kind="padded outputs",
        clause="reads",
        trigger="a padded decode where the fill value is 0",
        components=engine(model=SkipsEmptyRows),
    ),
    Fault(
        name="vllm-pr-38436-softmax-of-nothing",
        source="vLLM PR 38436: padded rows of length 0 have nothing to sum over and give NaN, which"
        " the scale of a tile of 128 rows hands on to live ones",
        kind="padded outputs",
        clause="computes",
        trigger="a padded decode or verify where the fill value is 0, and a layer that mixes rows",
        components=engine(model=SoftmaxOfNothing),
    ),
    Fault(
        name="vllm-pr-57094-zero-by-zero",
        source="vLLM PR 57094: the last stage of Triton MLA divides by zero for rows of length 0,"
        " and the NaN reaches all rows through the scale of a quantised tensor",
        kind="padded outputs",
        clause="computes",
        trigger="a padded decode where the fill value is 0, and a layer that mixes rows",
        components=engine(model=DividesByWeights),
    ),
    Fault(
        name="tokenspeed-pr-741-break-leaves-tail",
        source="tokenspeed PR 741: attention at an eager break defines the live rows alone, and the"
        " next piece of the graph computes with all rows of the bucket",
        kind="padded outputs",
        clause="computes",
        trigger="a padded prefill on breakable graphs, and a layer that mixes rows",
        components=engine(breakable=BreakLeavesTail),
    ),
)
