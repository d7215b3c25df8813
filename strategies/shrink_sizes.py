"""Reductions of sizes: the ladder, the numbers of the config, the lengths of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import msgspec

from fuzzgraph.case import DIMENSIONS, BatchRow, Case
from fuzzgraph.strategies.repair import repaired, with_config
from fuzzgraph.strategies.shrink_edits import (
    Candidate,
    cuts,
    map_rows,
    smaller,
    swap_row,
    swap_step,
)

_replace = msgspec.structs.replace
_NUMBERS = sorted(
    (row for name, row in DIMENSIONS.items() if row.number and name != "kv_pool_pages"),
    key=lambda row: (row.spec.size, not row.spec.edge),
)
"""Edges first, since lengths are lowered with them, and the sizes that must hold the rest last.
The pages of the pool follow from the other sizes (`repair`)."""
# What all rows can be lowered to at once. `repair` raises new tokens to what the mode needs.
_LEAST: tuple[dict[str, int], ...] = (
    {"seq_len": 1, "new_tokens": 0, "encoder_len": 0, "adapter": 0},
    {"encoder_len": 0},
    {"adapter": 0},
    {"seq_len": 1},
)


def smaller_ladders(case: Case) -> Iterator[Candidate]:
    for name in ("capture_bs", "capture_tokens"):
        ladder = getattr(case.config, name)
        for size in _few_sizes(ladder):
            yield (name, "one"), with_config(case, **{name: (size,)})
        for sizes in cuts(ladder):
            yield (name, "fewer"), with_config(case, **{name: tuple(sizes)})
        for index, size in enumerate(ladder):
            low = ladder[index - 1] + 1 if index else 1
            for number in smaller(size, low):
                lower = (*ladder[:index], number, *ladder[index + 1 :])
                yield (name, index), with_config(case, **{name: lower})


def _few_sizes(ladder: tuple[int, ...]) -> list[int]:
    if len(ladder) < 2 and ladder in ((), (1,)):
        return []
    return sorted({1, 2, *ladder}) if len(ladder) > 1 else [1, 2]


def smaller_numbers(case: Case) -> Iterator[Candidate]:
    for row in _NUMBERS:
        name = row.name
        for number in smaller(getattr(case.config, name), row.least):
            yield name, with_config(case, **{name: number, **_rank_within(case, name, number)})
            if row.spec.edge:
                yield name, _rescaled(case, name, number)
            if name == "max_context_len":
                yield name, _lowered(case, number)


def _rank_within(case: Case, name: str, number: int) -> dict[str, int]:
    """The engine's rank among fewer of them, where a size counts ranks."""
    rank = f"{name.removesuffix('_size')}_rank"
    return {rank: min(getattr(case.config, rank), number - 1)} if rank in DIMENSIONS else {}


def _rescaled(case: Case, name: str, number: int) -> Case:
    """A smaller page (window, split), each length as many of them and about as far into one."""
    edge = getattr(case.config, name)

    def scaled(row: BatchRow) -> BatchRow:
        whole, rest = divmod(row.seq_len, edge)
        return _replace(row, seq_len=whole * number + min(rest, number - 1))

    config = _replace(case.config, **{name: number})
    return map_rows(_replace(case, config=config), scaled)


def _lowered(case: Case, context: int) -> Case:
    """A shorter context, each length as far from its end."""
    drop = case.config.max_context_len - context
    config = _replace(case.config, max_context_len=context)
    lowered = map_rows(
        case, lambda row: _replace(row, seq_len=max(1, row.new_tokens, row.seq_len - drop))
    )
    return repaired(_replace(lowered, config=config))


def smaller_rows(case: Case) -> Iterator[Candidate]:
    for changes in _LEAST:
        yield "all", map_rows(case, partial(_replace, **changes))
    yield "all", map_rows(case, lambda row: _replace(row, seq_len=max(1, row.seq_len - 1)))
    for index, step in enumerate(case.steps):
        for place, row in enumerate(step.rows):
            for tokens in smaller(row.new_tokens, 0):
                yield (index, place, 0), swap_row(case, index, place, new_tokens=tokens)
            for length in smaller(row.seq_len, max(1, row.new_tokens)):
                yield (index, place, 1), swap_row(case, index, place, seq_len=length)


def smaller_ranks(case: Case) -> Iterator[Candidate]:
    """Fewer rows on the other data-parallel ranks, each by itself."""
    for index, step in enumerate(case.steps):
        for place, rows in enumerate(step.other_ranks):
            for fewer in smaller(rows, 0):
                others = (*step.other_ranks[:place], fewer, *step.other_ranks[place + 1 :])
                yield (index, place), swap_step(case, index, other_ranks=others)


def later_lengths(case: Case) -> Iterator[Candidate]:
    """The longer of two rows in the later of two steps: equal cases end in the same form."""
    for index, (step, following) in enumerate(pairwise(case.steps)):
        for place, row in enumerate(step.rows):
            for other, later in enumerate(following.rows):
                if row.seq_len > later.seq_len:
                    shorter = swap_row(case, index, place, seq_len=later.seq_len)
                    longer = swap_row(shorter, index + 1, other, seq_len=row.seq_len)
                    yield (index, place, other), longer


def lower_for_life(case: Case) -> Iterator[Candidate]:
    """A shorter encoder, or an adapter with a lower number; a request has one in all its rows, so
    it changes in all of them."""
    for name in ("encoder_len", "adapter"):
        given = {row.request: getattr(row, name) for step in case.steps for row in step.rows}
        for request, number in given.items():
            for lower in smaller(number, 0):
                yield (name, request), _with_all(case, request, {name: lower})


def _with_all(case: Case, request: int, changes: dict[str, int]) -> Case:
    return map_rows(case, lambda row: _replace(row, **changes) if row.request == request else row)
