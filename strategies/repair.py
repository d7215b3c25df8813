"""Make a cut case coherent again: what a smaller config or a missing step leaves behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.case.adapters import adapters_of, most_adapters, room_for_adapters
from fuzzgraph.case.capture_sizes import most_of_a_rank
from fuzzgraph.case.verify_budgets import cuts_rows
from fuzzgraph.case.whole_pasts import with_whole_past
from fuzzgraph.errors import OutOfPages
from fuzzgraph.layout import plan
from fuzzgraph.strategies.coherence import pages_per_request


def with_config(case: Case, **changes: Any) -> Case:
    """The case on a changed config, rows clipped to what that allows."""
    return repaired(
        msgspec.structs.replace(case, config=msgspec.structs.replace(case.config, **changes))
    )


def with_steps(case: Case, steps: Iterable[ReplayStep]) -> Case:
    """The case with other steps, made coherent."""
    return repaired(msgspec.structs.replace(case, steps=tuple(steps)))


def repaired(case: Case) -> Case:
    """Clip rows to the config, forget requests that left or never came, let the pool suffice.

    A step that lost its last row becomes an idle one.
    """
    config = _with_room(case.config)
    live: set[int] = set()
    steps = []
    for step in case.steps:
        finish = tuple(request for request in step.finish if request in live)
        live.difference_update(finish)
        others = _repaired_ranks(config, step)
        cuts = cuts_rows(config, max(len(step.rows), *others, 0))
        whole = config.verify_budget != "none" and not cuts
        rows = tuple(_repaired_row(config, step.mode, row, whole=whole) for row in step.rows)
        live.update(row.request for row in rows)
        prefill = step.others_prefill and any(others) and config.modes == ("decode",)
        if rows:
            changes = {
                "rows": rows, "finish": finish, "other_ranks": others, "others_prefill": prefill,
            }  # fmt: skip
            steps.append(msgspec.structs.replace(step, **changes))
        else:
            steps.append(
                ReplayStep(
                    mode="idle",
                    finish=finish,
                    via=step.via,
                    other_ranks=others,
                    others_prefill=prefill,
                )
            )
    return msgspec.structs.replace(case, config=config, steps=_within_loras(config, steps))


def within_pool(case: Case, least: int = 1) -> Case:
    """The case with its longest rows cut by half as often as it takes to fit into the page pool.

    Args:
        least: tokens that a row must have.

    Raises:
        OutOfPages: not even the shortest rows fit.
    """
    longest = case.config.max_context_len
    while True:
        try:
            plan(case)
        except OutOfPages:
            if longest <= least:
                raise
            longest = max(longest // 2, least)
            case = _with_rows_up_to(case, longest)
        else:
            return case


def _with_rows_up_to(case: Case, longest: int) -> Case:
    """Rows that compute more than that keep what they compute; prompts are cut."""
    return msgspec.structs.replace(
        case,
        steps=tuple(
            msgspec.structs.replace(
                step,
                rows=tuple(_row_up_to(longest, case.config, step.mode, row) for row in step.rows),
            )
            for step in case.steps
        ),
    )


def _row_up_to(longest: int, config: EngineConfig, mode: Mode, row: BatchRow) -> BatchRow:
    tokens = min(row.new_tokens, longest) if mode == "prefill" else row.new_tokens
    length = with_whole_past(config, mode, min(row.seq_len, max(longest, tokens)), tokens)
    return msgspec.structs.replace(row, seq_len=length, new_tokens=tokens)


def _with_room(config: EngineConfig) -> EngineConfig:
    """Page pool: the default, or what every request at its longest needs."""
    needed = config.req_pool_size * pages_per_request(config)
    return msgspec.structs.replace(config, kv_pool_pages=max(64, needed))


def _repaired_row(config: EngineConfig, mode: Mode, row: BatchRow, *, whole: bool) -> BatchRow:
    """
    Args:
        whole: whether a verify has a place for each draft of a row.
    """
    low, high = _new_token_range(config, mode)
    if mode == "target_verify" and config.spec_topk == 1 and row.new_tokens and not whole:
        low = 1  # a chain may end early; 0 stands for all drafts
    tokens = min(max(row.new_tokens, low), high)
    length = min(max(row.seq_len, tokens, 1), config.max_context_len)
    return BatchRow(
        request=row.request,
        seq_len=with_whole_past(config, mode, length, tokens),
        new_tokens=tokens,
        encoder_len=min(row.encoder_len, config.max_encoder_len),
        adapter=row.adapter,
    )


def _within_loras(config: EngineConfig, steps: list[ReplayStep]) -> tuple[ReplayStep, ...]:
    """The steps with lower numbers of adapters, if any step has too many."""
    named = [adapters_of(step) for step in steps]
    most = most_adapters(config)
    if all(room_for_adapters(config, each) >= 0 and max(each, default=0) <= most for each in named):
        return tuple(steps)
    return tuple(
        msgspec.structs.replace(
            step,
            rows=tuple(
                msgspec.structs.replace(row, adapter=min(row.adapter, config.max_loras))
                for row in step.rows
            ),
        )
        for step in steps
    )


def _repaired_ranks(config: EngineConfig, step: ReplayStep) -> tuple[int, ...]:
    """Of fewer ranks the first ones, each with rows or tokens that its pool has."""
    most = most_of_a_rank(config, prefills=step.others_prefill)
    kept = tuple(min(size, most) for size in step.other_ranks[: config.dp_size - 1])
    return kept if len(kept) == config.dp_size - 1 else ()


def _new_token_range(config: EngineConfig, mode: Mode) -> tuple[int, int]:
    ranges: dict[Mode, tuple[int, int]] = {
        "target_verify": (config.draft_tokens, config.draft_tokens),
        "draft_extend": (0, config.draft_tokens),
        "draft": (0, 0),
        "prefill": (1, config.max_context_len),
    }
    return ranges.get(mode, (1, 1))
