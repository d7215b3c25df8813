"""Kernels of low latency that exchange tokens between ranks of experts, as one rank meets them.

A dispatch sends each token to the ranks of its experts and packs what arrives: for each expert of
this rank the tokens of one rank behind those of another, in any order, and a count of them; what
lies behind the count is what was there. A combine sends back what the experts gave, to the rank and
token that the dispatch has noted, and sums it up with the weights there. Each of the two has a part
that sends and one that receives, which the caller runs by a hook. There are two buffers in turn;
each kernel needs its own clean and cleans the other one.

What the other ranks send is handed to the models as tensors, and so are the weights of their
experts.

Source: DeepEP 04b06f7, deep_ep/buffer.py (low_latency_dispatch, low_latency_combine,
clean_low_latency_buffer); 005dcc9, csrc/kernels/internode_ll.cu.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers

__all__ = ["Exchange", "Handle", "Packed"]

_DISPATCH = "DeepEP 04b06f7, deep_ep/buffer.py low_latency_dispatch"
_COMBINE = "DeepEP 04b06f7, deep_ep/buffer.py low_latency_combine"
_DIRTY = "the buffer must be clean: the kernel before uses the other one and cleans it"


@dataclass(frozen=True, slots=True)
class Handle:
    """What a dispatch leaves for its combine."""

    source: torch.Tensor
    """int32 [experts of this rank, ranks * most], the token of its rank that each row is."""
    ranges: torch.Tensor
    """int64 [experts of this rank, ranks, 2]: first row and number of rows from each rank."""
    half: int
    """Which of the two buffers the tokens lie in."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What a dispatch gives, filled by its second part."""

    rows: torch.Tensor
    """bfloat16 [experts of this rank, ranks * most, columns]."""
    counts: torch.Tensor
    """int32 [experts of this rank]."""
    handle: Handle


class Exchange:
    """The memory of one rank, and the kernels on it.

    Args:
        rank: of this process; ranks: all.
        most: tokens of a rank in one exchange (num_max_dispatch_tokens_per_rank).
        each: experts of a token.
        device: where the memory lies.
    """

    def __init__(
        self,
        *,
        rank: int,
        ranks: int,
        experts: int,
        most: int,
        each: int,
        columns: int,
        device: torch.device,
    ) -> None:
        self.rank, self.ranks, self.experts, self.most = rank, ranks, experts, most
        self.mine = experts // ranks
        self._each, self._columns = each, columns
        self._next = 0

        def room(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.used = torch.zeros(2, dtype=torch.int32, device=device)
        """Whether each of the two buffers is to be cleaned."""
        self.sent = room(2, most, columns)
        self.sent_ids = torch.full((2, most, each), -1, dtype=torch.int64, device=device)
        self.returned = room(2, experts, most, columns)
        """What each expert gave for this rank's tokens."""
        self.others = room(ranks, most, columns)
        """The rows of other ranks' tokens; this one's place is not read."""
        self.others_ids = torch.full((ranks, most, each), -1, dtype=torch.int64, device=device)
        """Their experts, -1 for none."""
        self.others_weights = torch.zeros(ranks, most, each, device=device)
        self.given = room(ranks, most, columns)
        """What this rank's experts gave for each rank's tokens, summed up with their weights."""

    def clean(self) -> None:
        """Both buffers, whatever used them."""
        self.used.zero_()

    def _take(self) -> int:
        """The buffer of the kernel that comes now."""
        half, self._next = self._next, 1 - self._next
        return half

    def send_tokens(self, x: torch.Tensor, topk_idx: torch.Tensor) -> Packed:
        """The first part of a dispatch; what it gives is not filled yet.

        Raises:
            KernelRefused: the real host code refuses such a call.
        """
        call = Call("low_latency_dispatch", _DISPATCH)
        call.needs_shape("x", x, None, self._columns)
        call.needs_dtype("x", x, torch.bfloat16)
        call.needs(len(x) <= self.most, f"x must have at most {self.most} rows", len(x))
        call.needs_shape("topk_idx", topk_idx, len(x), self._each)
        call.needs_dtype("topk_idx", topk_idx, torch.int64)
        for name, tensor in (("x", x), ("topk_idx", topk_idx)):
            call.needs_contiguous(name, tensor)
        half, rows = self._take(), self.ranks * self.most

        def room(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(self.mine, *shape, dtype=dtype, device=x.device)

        source = room(rows, dtype=torch.int32)
        ranges = room(self.ranks, 2, dtype=torch.int64)
        packed = Packed(
            room(rows, self._columns, dtype=torch.bfloat16),
            room(dtype=torch.int32),
            Handle(source, ranges, half),
        )
        launch(
            _SEND_TOKENS, x=x, topk_idx=topk_idx, counts=packed.counts, source=source,
            ranges=ranges, half=half, experts=self.experts, used=self.used, sent=self.sent,
            sent_ids=self.sent_ids,
        )  # fmt: skip
        return packed

    def receive_tokens(self, packed: Packed) -> None:
        """The second part of a dispatch."""
        launch(
            _RECEIVE_TOKENS, rows=packed.rows, counts=packed.counts, source=packed.handle.source,
            ranges=packed.handle.ranges, half=packed.handle.half, rank=self.rank, sent=self.sent,
            sent_ids=self.sent_ids, others=self.others, others_ids=self.others_ids,
        )  # fmt: skip

    def send_results(
        self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Handle
    ) -> tuple[int, torch.Tensor]:
        """The first part of a combine: its buffer, and room for the sums of this rank's tokens.

        Raises:
            KernelRefused: the real host code refuses such a call.
        """
        call = Call("low_latency_combine", _COMBINE)
        call.needs_shape("x", x, self.mine, self.ranks * self.most, self._columns)
        call.needs_dtype("x", x, torch.bfloat16)
        call.needs(len(topk_idx) <= self.most, f"at most {self.most} tokens", len(topk_idx))
        call.needs_shape("topk_idx", topk_idx, None, self._each)
        call.needs_dtype("topk_idx", topk_idx, torch.int64)
        call.needs_shape("topk_weights", topk_weights, len(topk_idx), self._each)
        call.needs_dtype("topk_weights", topk_weights, torch.float32)
        for name, tensor in (("x", x), ("topk_idx", topk_idx), ("topk_weights", topk_weights)):
            call.needs_contiguous(name, tensor)
        half = self._take()
        combined = torch.empty(
            len(topk_idx), self._columns, dtype=torch.bfloat16, device=topk_idx.device
        )
        launch(
            _SEND_RESULTS, x=x, source=handle.source, ranges=handle.ranges, half=half,
            rank=self.rank, used=self.used, returned=self.returned, given=self.given,
            others_ids=self.others_ids, others_weights=self.others_weights,
        )  # fmt: skip
        return half, combined

    def compute_elsewhere(
        self, handle: Handle, half: int, gates_and_ups: torch.Tensor, downs: torch.Tensor
    ) -> None:
        """What other ranks do between the two parts of a combine: their experts compute the rows
        that this rank has sent them, and send back what they give.

        Args:
            half: the buffer of the combine.
            gates_and_ups: [experts, 2 * inner, columns] of all ranks; downs: [experts, columns,
                inner].
        """
        launch(
            _COMPUTE_ELSEWHERE, half=handle.half, into=half, rank=self.rank, mine=self.mine,
            sent=self.sent, sent_ids=self.sent_ids, returned=self.returned,
            gates_and_ups=gates_and_ups, downs=downs,
        )  # fmt: skip

    def receive_results(
        self,
        combined: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        half: int,
    ) -> None:
        """The second part of a combine."""
        launch(
            _RECEIVE_RESULTS, combined=combined, topk_idx=topk_idx, topk_weights=topk_weights,
            half=half, rank=self.rank, returned=self.returned, given=self.given,
            mine=self.mine,
        )  # fmt: skip


def _take_buffer(memory: KernelMemory, used: torch.Tensor, half: int) -> None:
    if memory.ints(used)[half]:
        memory.misused("used", _DIRTY, f"buffer {half}, which a kernel has used")
    used[half], used[1 - half] = 1, 0


def _run_send_tokens(
    memory: KernelMemory,
    *,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    counts: torch.Tensor,
    source: torch.Tensor,
    ranges: torch.Tensor,
    half: int,
    experts: int,
    used: torch.Tensor,
    sent: torch.Tensor,
    sent_ids: torch.Tensor,
) -> None:
    _take_buffer(memory, used, half)
    ids = memory.ints(topk_idx)
    outside = np.argwhere((ids < -1) | (ids >= experts))
    if len(outside):
        token, place = outside[0].tolist()
        rule = f"topk_idx must lie in -1..{experts - 1}"
        memory.misused("topk_idx", rule, f"{ids[token, place]} of token {token}")
    tokens = len(x)
    sent[half, :tokens] = x
    sent_ids[half, :tokens], sent_ids[half, tokens:] = topk_idx, -1
    counts.zero_()
    # The kernel leaves these as they are until tokens arrive, and no caller reads them.
    source.fill_(-1)
    ranges.zero_()


def _run_receive_tokens(
    memory: KernelMemory,
    *,
    rows: torch.Tensor,
    counts: torch.Tensor,
    source: torch.Tensor,
    ranges: torch.Tensor,
    half: int,
    rank: int,
    sent: torch.Tensor,
    sent_ids: torch.Tensor,
    others: torch.Tensor,
    others_ids: torch.Tensor,
) -> None:
    mine, ranks = len(counts), len(others)
    own = memory.ints(sent_ids)[half]
    ids_of = [own if each == rank else memory.ints(others_ids)[each] for each in range(ranks)]
    for expert in range(mine):
        first = 0
        for each in reversed(range(ranks)):  # as they arrive, which may be in any order
            tokens = np.flatnonzero((ids_of[each] == rank * mine + expert).any(axis=1))[::-1].copy()
            arrived = (sent[half] if each == rank else others[each])[torch.from_numpy(tokens)]
            at = np.arange(first, first + len(tokens))
            memory.store("rows", rows, arrived, np.full_like(at, expert), at)
            memory.store("source", source, tokens, np.full_like(at, expert), at)
            ranges[expert, each, 0], ranges[expert, each, 1] = first, len(tokens)
            first += len(tokens)
        counts[expert] = first


def _results(
    memory: KernelMemory, x: torch.Tensor, source: torch.Tensor, ranges: torch.Tensor
) -> Iterator[tuple[int, int, Ints, torch.Tensor]]:
    """(expert of this rank, rank, its tokens, what the expert gave for them)."""
    lists = memory.ints(ranges)
    for expert, rank in np.ndindex(lists.shape[:2]):
        first, count = lists[expert, rank].tolist()
        if not 0 <= first <= first + count <= x.shape[1]:
            rule = f"handle must name rows in 0..{x.shape[1]}, as its dispatch has received them"
            memory.misused("handle", rule, f"{count} rows from {first} on")
            continue
        at = np.arange(first, first + count)
        place = np.full_like(at, expert), at
        yield (
            expert,
            rank,
            memory.entries("source", source, *place),
            memory.rows("x", x, *place),
        )


def _run_send_results(
    memory: KernelMemory,
    *,
    x: torch.Tensor,
    source: torch.Tensor,
    ranges: torch.Tensor,
    half: int,
    rank: int,
    used: torch.Tensor,
    returned: torch.Tensor,
    given: torch.Tensor,
    others_ids: torch.Tensor,
    others_weights: torch.Tensor,
) -> None:
    _take_buffer(memory, used, half)
    mine = len(x)
    sums = np.zeros(given.shape)
    ids, weights = memory.ints(others_ids), as_numbers(others_weights)
    for expert, each, tokens, results in _results(memory, x, source, ranges):
        number = rank * mine + expert
        if each == rank:
            index = np.full_like(tokens, half), np.full_like(tokens, number), tokens
            memory.store("returned", returned, results, *index)
        else:
            parts = np.where(ids[each] == number, weights[each], 0.0).sum(axis=1)
            np.add.at(sums[each], tokens, parts[tokens, None] * as_numbers(results))
    given.copy_(torch.from_numpy(sums))


def _run_experts_elsewhere(
    memory: KernelMemory,
    *,
    half: int,
    into: int,
    rank: int,
    mine: int,
    sent: torch.Tensor,
    sent_ids: torch.Tensor,
    returned: torch.Tensor,
    gates_and_ups: torch.Tensor,
    downs: torch.Tensor,
) -> None:
    ids = memory.ints(sent_ids)[half]
    for token, place in np.argwhere((ids >= 0) & (ids // mine != rank)).tolist():
        expert = int(ids[token, place])
        row = as_numbers(sent[half, token])
        with np.errstate(over="ignore", invalid="ignore"):
            gate, up = np.split(as_numbers(gates_and_ups[expert]) @ row, 2)
            found = as_numbers(downs[expert]) @ (gate / (1.0 + np.exp(-gate)) * up)
        returned[into, expert, token] = torch.from_numpy(found).to(returned.dtype)


def _run_receive_results(
    memory: KernelMemory,
    *,
    combined: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    half: int,
    rank: int,
    returned: torch.Tensor,
    given: torch.Tensor,
    mine: int,
) -> None:
    ids, weights = memory.ints(topk_idx), as_numbers(topk_weights)
    found = np.zeros(combined.shape)
    own = np.zeros(combined.shape)
    for place in range(ids.shape[1]):
        tokens = np.flatnonzero(ids[:, place] >= 0)
        experts = ids[tokens, place]
        index = np.full_like(tokens, half), experts, tokens
        part = weights[tokens, place, None] * memory.numbers("returned", returned, *index)
        found[tokens] += part
        here = experts // mine == rank
        own[tokens[here]] += part[here]
    combined.copy_(torch.from_numpy(found))
    given[rank, : len(own)] = torch.from_numpy(own).to(given.dtype)


_SEND_TOKENS = ModelKernel("low_latency_dispatch", _run_send_tokens, _DISPATCH)
_RECEIVE_TOKENS = ModelKernel("low_latency_dispatch_receives", _run_receive_tokens, _DISPATCH)
_SEND_RESULTS = ModelKernel("low_latency_combine", _run_send_results, _COMBINE)
_COMPUTE_ELSEWHERE = ModelKernel("experts_elsewhere", _run_experts_elsewhere, _COMBINE)
_RECEIVE_RESULTS = ModelKernel("low_latency_combine_receives", _run_receive_results, _COMBINE)
