"""Which histories make sense: every step against the config and against the steps before it."""

from __future__ import annotations

from fuzzgraph.case.adapters import (
    adapters_of,
    most_adapters,
    pinned_adapters,
    room_for_adapters,
)
from fuzzgraph.case.capture_sizes import ladder, most_of_a_rank, padded_size, rank_sizes
from fuzzgraph.case.config_rules import refuse, validate_config
from fuzzgraph.case.engine_config import EngineConfig, Mode
from fuzzgraph.case.model import BatchRow, Case, ReplayStep
from fuzzgraph.case.verified_states import most_requests
from fuzzgraph.case.verify_budgets import cuts_rows
from fuzzgraph.case.whole_pasts import past_unit

_MOST_STEPS = 1000
_MOST_REQUESTS = 1 << 20
_STEADY = (
    ("encoder_len", "An encoder output never changes: use one length."),
    ("adapter", "A request keeps its adapter: use one."),
)
"""What all rows of a request share, and the way out where they do not."""


def validate(case: Case) -> Case:
    """Return the case if it is coherent.

    Raises:
        InvalidCase: names the first field that contradicts another, its value and the way out.
    """
    config = case.config
    validate_config(config)
    _check_whole(case)
    live: dict[int, BatchRow] = {}
    for index, step in enumerate(case.steps):
        where = f"steps[{index}]"
        _finish(live, step, where)
        _check_step(config, step, where)
        _add_rows(live, config, step, where)
        if step.mode != "idle":
            _check_size(config, step, where)
    return case


def _check_whole(case: Case) -> None:
    pages = case.config.kv_pool_pages
    if not case.steps:
        refuse("steps", (), "is empty", "Give at least one step.")
    if len(case.steps) > _MOST_STEPS:
        refuse("steps", len(case.steps), f"are more than {_MOST_STEPS}", "Split the case.")
    if not 0 <= case.seed < 1 << 63:
        refuse("seed", case.seed, "must lie in 0..2**63-1", "Use a non-negative seed.")
    if not 0 <= case.shared_prefix_pages <= pages:
        refuse(
            "shared_prefix_pages",
            case.shared_prefix_pages,
            f"must lie in 0..kv_pool_pages={pages}",
            "Lower it.",
        )


def _finish(live: dict[int, BatchRow], step: ReplayStep, where: str) -> None:
    for request in step.finish:
        if live.pop(request, None) is None:
            refuse(
                f"{where}.finish",
                request,
                "names a request that is not live",
                "Add the request in an earlier step, or drop it here.",
            )


def _check_step(config: EngineConfig, step: ReplayStep, where: str) -> None:
    if step.mode == "idle" and step.rows:
        refuse(f"{where}.rows", len(step.rows), "must be empty in mode 'idle'", "Drop the rows.")
    if step.mode != "idle" and step.mode not in config.modes:
        refuse(
            f"{where}.mode",
            step.mode,
            f"is not captured; config.modes={list(config.modes)}",
            "Add it there, or change the step.",
        )
    names = [row.request for row in step.rows]
    if len(set(names)) != len(names):
        refuse(f"{where}.rows", names, "name a request twice", "Keep one row per request.")
    _check_other_ranks(config, step, f"{where}.other_ranks")
    _check_budget(config, step, where)


def _check_budget(config: EngineConfig, step: ReplayStep, where: str) -> None:
    """Where a verify has a budget, that alone leaves rows fewer tokens."""
    rows = max(rank_sizes(config, step))
    whole = config.verify_budget != "none" and not cuts_rows(config, rows)
    fewer = [row.new_tokens for row in step.rows if row.new_tokens < config.draft_tokens]
    if step.mode == "target_verify" and whole and fewer:
        refuse(
            f"{where}.new_tokens",
            fewer[0],
            f"must be draft_tokens={config.draft_tokens} with {rows} rows and "
            f"verify_budget={config.verify_budget!r}, which does not cut them",
            "Verify whole rows, or capture a size for them and use 'compact'.",
        )


def _check_other_ranks(config: EngineConfig, step: ReplayStep, where: str) -> None:
    others = step.other_ranks
    most = most_of_a_rank(config, prefills=step.others_prefill)
    decodes = step.mode in ("decode", "idle") and config.modes == ("decode",)
    if step.others_prefill and not (decodes and any(others)):
        refuse(
            where.replace("other_ranks", "others_prefill"),
            True,
            f"needs modes=['decode'] and other_ranks with tokens; got {list(config.modes)} and "
            f"{list(others)}",
            "Give another rank tokens, or drop it.",
        )
    if others and len(others) != config.dp_size - 1:
        refuse(
            where,
            others,
            f"must name the {config.dp_size - 1} other ranks of dp_size={config.dp_size}",
            "Give each its rows or tokens, or leave them out for as many as here.",
        )
    if any(not 0 <= rows <= most for rows in others):
        refuse(
            where,
            others,
            f"must lie in 0..{most}, which is what the request pool of a rank holds",
            "Lower them, or raise config.req_pool_size.",
        )


def _add_rows(
    live: dict[int, BatchRow], config: EngineConfig, step: ReplayStep, where: str
) -> None:
    """`live` maps each live request to its first row."""
    for position, row in enumerate(step.rows):
        _check_row(config, step.mode, row, f"{where}.rows[{position}]")
        first = live.setdefault(row.request, row)
        for name, way_out in _STEADY:
            given = getattr(row, name)
            if given != getattr(first, name):
                refuse(
                    f"{where}.rows[{position}].{name}",
                    given,
                    f"contradicts {getattr(first, name)} given earlier for request {row.request}",
                    way_out,
                )
    _check_adapters(config, step, where)
    if len(live) > most_requests(config):
        rows = len(live) > config.req_pool_size
        size = "req_pool_size" if rows else "state_pool_size"
        refuse(
            f"{where}: live requests",
            len(live),
            f"exceed {size}={getattr(config, size)}",
            f"Finish some, or raise config.{size}.",
        )


def _expected_new_tokens(config: EngineConfig, mode: Mode) -> tuple[int, int]:
    """Smallest and largest `new_tokens` of a row in `mode`."""
    if mode == "target_verify":  # a tree has a place for each draft; a chain may end early
        return config.draft_tokens if config.spec_topk > 1 else 1, config.draft_tokens
    if mode == "draft_extend":
        return 0, config.draft_tokens
    if mode == "draft":
        return 0, 0
    if mode == "prefill":
        return 1, config.max_context_len
    return 1, 1


def _check_row(config: EngineConfig, mode: Mode, row: BatchRow, where: str) -> None:
    low, high = _expected_new_tokens(config, mode)
    if not low <= row.new_tokens <= high:
        refuse(
            f"{where}.new_tokens",
            row.new_tokens,
            f"must lie in {low}..{high} in mode {mode!r}",
            "Change the row or the mode.",
        )
    least = max(row.new_tokens, 1)
    if not least <= row.seq_len <= config.max_context_len:
        refuse(
            f"{where}.seq_len",
            row.seq_len,
            f"must lie in {least}..max_context_len={config.max_context_len}",
            "Shorten the request, or raise config.max_context_len.",
        )
    unit = past_unit(config, mode)
    if config.image_encoder and row.seq_len != row.new_tokens:
        refuse(
            f"{where}.seq_len",
            row.seq_len,
            f"must be new_tokens={row.new_tokens}: an image has no past",
            "Give both the patches of the image.",
        )
    if (row.seq_len - row.new_tokens) % unit:
        refuse(
            f"{where}.seq_len",
            row.seq_len,
            f"must lie behind whole pages of {unit} tokens by new_tokens={row.new_tokens}",
            "Shorten the request, or let it compute more.",
        )
    if not 0 <= row.request < _MOST_REQUESTS:
        refuse(
            f"{where}.request",
            row.request,
            f"must lie in 0..{_MOST_REQUESTS - 1}",
            "Use a small request id.",
        )
    if not 0 <= row.encoder_len <= config.max_encoder_len:
        refuse(
            f"{where}.encoder_len",
            row.encoder_len,
            f"must lie in 0..max_encoder_len={config.max_encoder_len}",
            "Shorten it, or raise config.max_encoder_len.",
        )
    if not 0 <= row.adapter <= most_adapters(config):
        refuse(
            f"{where}.adapter",
            row.adapter,
            f"must lie in 0..{most_adapters(config)} with max_loras={config.max_loras}",
            "Use a smaller number, or raise config.max_loras.",
        )


def _check_adapters(config: EngineConfig, step: ReplayStep, where: str) -> None:
    named = adapters_of(step)
    if room_for_adapters(config, named) < 0:
        pinned = len(pinned_adapters(config))
        beside = f", of which {pinned} are pinned" if pinned else ""
        refuse(
            f"{where}: adapters",
            sorted(named),
            f"are more than max_loras={config.max_loras}{beside}",
            "Use fewer in one step, or raise config.max_loras.",
        )


def _check_size(config: EngineConfig, step: ReplayStep, where: str) -> None:
    by_graph = step.via == "graph" and not step.others_prefill
    if by_graph and padded_size(config, step) is None and not config.eager_above_ladder:
        size = max(rank_sizes(config, step))
        largest = ladder(config, step.mode)[-1]
        name = "capture_tokens" if step.mode == "prefill" else "capture_bs"
        refuse(
            f"{where}: size",
            size,
            f"exceeds max({name})={largest} and eager_above_ladder is false",
            f"Add a size >= {size} to config.{name}, or shrink the batch.",
        )
