"""Outputs and metadata of another shape or dtype; what is stored where nothing reads it yet."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.targets.builtin.faults.fault import Fault, engine, metadata
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.page_table import PageTable, PageView
from fuzzgraph.targets.builtin.model import BuiltinModel, ForwardInputs
from fuzzgraph.targets.builtin.registry import GraphSlot
from fuzzgraph.targets.builtin.slots import Slots


class RowsOfOtherRanks(LocalTokens):
    def shard(self, padded_tokens: int) -> tuple[int, int]:
        return super().shard(padded_tokens)[0], padded_tokens


class OutputInHalf(BuiltinModel):
    def new_output(self, inputs: ForwardInputs) -> torch.Tensor:
        output = super().new_output(inputs)
        return output.bfloat16() if output.dtype == torch.float32 else output


class LengthsInInt64(Slots):
    def seq_lens(self) -> GraphSlot:
        return replace(super().seq_lens(), dtype=torch.int64)


class LastPageOfPages(PageTable):
    def write_last_page_len(self, view: PageView) -> None:
        super().write_last_page_len(view)
        pages = view.seq_lens.add(self.page_size - 1).div_(self.page_size, rounding_mode="floor")
        torch.sub(pages, 1, out=view.last_page_len)
        view.last_page_len.remainder_(self.page_size).add_(1)
        view.last_page_len.mul_(view.seq_lens > 0)


class StateNotSaved(BuiltinModel):
    def advance_state(self, input_ids: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        assert self.state is not None, "called without a state pool"
        before = self.state.read(slots).clone()
        advanced = super().advance_state(input_ids, slots)
        self.state.write(slots, before)
        return advanced


FAULTS = (
    Fault(
        name="tensorrt-llm-pr-17816-rank-keeps-other-rows",
        source="TensorRT-LLM PR 17816 (review): the row counts of ranks stay those of the padded"
        " bucket, so that rows and counts disagree; here a rank shows the rows of those behind it",
        kind="shape or dtype",
        clause="computes",
        trigger="attention-TP above 1 on any rank but the last",
        components=engine(local=RowsOfOtherRanks),
    ),
    Fault(
        name="tensorrt-llm-pr-18075-output-in-bfloat16",
        source="TensorRT-LLM PR 18075: the output has the model's dtype if that is a half one, else"
        " bfloat16",
        kind="shape or dtype",
        clause="computes",
        trigger="a float32 model",
        components=engine(model=OutputInHalf),
    ),
    Fault(
        name="vllm-rbln-pr-648-lengths-in-int64",
        source="vllm-rbln PR 648: lengths became int64, the attention kernel takes int32",
        kind="shape or dtype",
        clause="metadata",
        trigger="any replay",
        components=engine(slots=LengthsInInt64),
    ),
    Fault(
        name="flashinfer-pr-2079-last-page-length-of-pages",
        source="FlashInfer PR 2079 (review): the length of the last page is worked out from the"
        " number of pages instead of that of tokens",
        kind="page granularity",
        clause="metadata",
        trigger="a page table at page_size > 1",
        components=metadata(page_table=LastPageOfPages),
    ),
    Fault(
        name="sglang-pr-32606-state-not-saved",
        source="sglang PR 32606: under a graph the recurrent state is not saved, and the next"
        " request with that prefix gets an old one",
        kind="recurrent state",
        clause="computes",
        trigger="a decode with recurrent state",
        components=engine(model=StateNotSaved),
    ),
)
