"""Loads of memory that the batch does not name, masked or not."""

from __future__ import annotations

import torch

from fuzzgraph.reference.triton_ready import ready_triton
from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.pools import ReqToTokenPool
from fuzzgraph.world import RESERVED_SLOT

_TINY = 2.0**-26
"""A softmax weight that should be 0: it moves the last bits of a float32 only."""


class UninitialisedMap(ReqToTokenPool):
    def allocate(self, rows: int, width: int, device: torch.device) -> torch.Tensor:
        return torch.empty(rows, width, dtype=torch.int32, device=device)


class NanInNullSlot(BuiltinModel):
    """Padded rows leave NaN in the reserved slot; a masked tile multiplies it by 0."""

    def store(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        padded = (slots == RESERVED_SLOT)[:, None, None]
        super().store(slots, k, v.masked_fill(padded, float("nan")))

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        super().attention(q, out, batch)
        if batch.window:
            out.add_(self.kv.values()[RESERVED_SLOT].float().sum() * 0.0)


class ReadsPastTheEnd(BuiltinModel):
    """The tile behind a row's last key is masked by a small weight instead of none."""

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        super().attention(q, out, batch)
        if batch.kv_indptr is None or batch.kv_indices is None or batch.qo_indptr is not None:
            return
        last = batch.kv_indices.index_select(0, (batch.kv_indptr[1:] - 1).clamp(min=0))
        values = self.kv.values()
        beyond = values.index_select(0, (last + 1).clamp(max=len(values) - 1)).to(out.dtype)
        out.add_(beyond.repeat_interleave(out.shape[1] // beyond.shape[1], dim=1), alpha=_TINY)


class LoadsAhead(BuiltinModel):
    """A kernel loads each row's successor ahead of time, behind the last row too."""

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        ready_triton()
        from fuzzgraph.targets.builtin.faults.ahead_kernel import load_ahead

        super().attention(q, out, batch)
        load_ahead(batch.kv_lens)


FAULTS = (
    Fault(
        name="sglang-pr-1782-req-to-token-uninitialised",
        source="sglang PR 1782: req_to_token is allocated without a value, padded rows read it",
        kind="uninitialised memory",
        clause="reads",
        trigger="any padded row",
        components=engine(req_to_token=UninitialisedMap),
    ),
    Fault(
        name="sglang-pr-32477-nan-in-null-slot",
        source="sglang PR 32477, vLLM PR 36939: padded rows leave NaN in the reserved slot, which"
        " a masked tile of a sliding window multiplies by 0",
        kind="sentinel or null slot",
        clause="computes",
        trigger="a padded batch with a sliding window",
        components=engine(model=NanInNullSlot),
    ),
    Fault(
        name="vllm-pr-36939-masked-tile-past-the-end",
        source="vLLM PR 36939, 57158: masked gathers load keys past the end of a row; here their"
        " weight is tiny instead of 0, so that no value changes beyond its last bits",
        kind="sentinel or null slot",
        clause="reads",
        trigger="any decode",
        components=engine(model=ReadsPastTheEnd),
    ),
    Fault(
        name="vllm-pr-57158-gather-past-the-lengths",
        source="vLLM PR 57158, 36939: a masked gather loads behind the end of its rows; here what"
        " it loads is dropped altogether, so that no value can show it, only the access itself",
        kind="length edge",
        clause="reads",
        trigger="any batch with a row, kernels interpreted and checked",
        components=engine(model=LoadsAhead),
        checked=True,
    ),
)
