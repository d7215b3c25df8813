"""Names of the boundary values and histories that a case covers, and the groups that they form.

For coverage reports and for keeping the corpus small. Values of a config are named by the table of
dimensions. The other names follow the triggers of the historical bugs: what a batch is, how long
its rows are, and what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from fuzzgraph.case import (
    DIMENSIONS,
    SPEC_MODES,
    Case,
    EngineConfig,
    ReplayStep,
    captured_size,
    group_configs,
    ladder,
    padded_size,
    rank_sizes,
    raw_size,
    replayed_size,
)
from fuzzgraph.layout.free_list import FreeList
from fuzzgraph.layout.streams import accepted_lens
from fuzzgraph.world import FIRST_ROW

GROUPS: dict[str, tuple[str, ...]] = {
    "mode": ("mode ",),
    "graph or eager": ("via ",),
    "page size": (),
    "page map": ("page order ", "shared prefix"),
    "ladder": ("ladder of", "ladder with", "capture beyond", "token ladder", "above ladder",
               "prefill far"),
    "padding": ("raw<", "raw=", "prefill raw", "local count", "rank without"),
    "lengths": ("len=", "ragged", "sum of lengths", "context ends"),
    "batch size": ("growing", "shrinking", "repeated size", "small large", "large small"),
    "history": ("same graph", "smaller graph", "eager between", "larger eager", "idle between",
                "modes there", "interleaved", "repeated step", "optional"),
    "requests": ("finished", "all finished", "row reused", "added later", "continued",
                 "grown by", "length rolled", "parked"),
    "heads": ("MHA", "MQA", "GQA", "MLA", "key and value"),
    "dtype": (),
    "kernels": (),
    "metadata": ("several splits",),
    "speculation": ("draft", "fewer drafts", "accept", "prompt as long"),
    "features": ("window", "pages freed", "other ranks"),
}  # fmt: skip
"""Group of a report -> how the names that this module gives begin, in the order of the report's
columns. The names of a config's values belong to the group that their row of the table names."""
_LABELS = [
    (row.spec.label.partition("{}")[0], row.spec.group)
    for row in DIMENSIONS.values()
    if row.spec.label
]


@lru_cache(maxsize=4096)
def group_of(name: str) -> str | None:
    """The group of a value's name; None for one that reports do not pair, such as a ladder's."""
    for label, group in _LABELS:
        if name.startswith(label):
            return group
    return next((group for group, begins in GROUPS.items() if name.startswith(begins)), None)


def coverage_values(case: Case) -> frozenset[str]:
    """The names of all dimension values that the case covers."""
    names = set(_of_ladder(case.config))
    names.update(_of_shapes(case.config))
    names.update(_of_rows(case.config))
    names.update(_of_drafts(case.config))
    names.add(f"page order {case.page_order}")
    if _shared_pages(case):
        names.add("shared prefix")
    for step in case.steps:
        names.update(_of_step(case.config, step))
    names.update(_of_sizes(case))
    names.update(_of_neighbours(case))
    names.update(_of_lifecycle(case.config, case.steps))
    names.update(_of_freed_rows(case))
    if accepted_lens(case):
        names.add("drafts rejected")
    return frozenset(names)


def _shared_pages(case: Case) -> int:
    """Pages that are in fact shared: a step that writes one ends it (see `layout`)."""
    cached = [row.seq_len - row.new_tokens for step in case.steps for row in step.rows]
    return min([case.shared_prefix_pages, *(length // case.config.page_size for length in cached)])


def _when(**named: bool) -> Iterator[str]:
    return (name.replace("_", " ") for name, holds in named.items() if holds)


def _of_ladder(config: EngineConfig) -> Iterator[str]:
    ladder = config.capture_bs
    yield f"ladder {list(ladder)}"
    yield from _when(
        ladder_of_one_size=len(ladder) == 1,
        ladder_with_gaps=any(b > a + 1 for a, b in pairwise((0, *ladder))),
        capture_beyond_pool=bool(ladder) and ladder[-1] > config.req_pool_size,
        ladder_within_pool=bool(ladder) and ladder[-1] < config.req_pool_size,
    )
    if "prefill" in config.modes:
        yield "token ladder"


def _of_shapes(config: EngineConfig) -> Iterator[str]:
    heads, kv_heads, page = config.num_q_heads, config.num_kv_heads, config.page_size
    if page > 1:
        yield "page_size>1"
    if config.max_context_len % page:
        yield "context ends inside a page"
    if config.attention == "mla":
        yield "MLA"
    else:
        yield "MHA" if heads == kv_heads else "MQA" if kv_heads == 1 else "GQA"
    if config.head_dim != config.v_head_dim:
        yield "key and value dims differ"
    window = config.sliding_window
    if window:
        yield "window<page" if window < page else "window=page" if window == page else "window>page"


def _of_rows(config: EngineConfig) -> Iterator[str]:
    """What the table of dimensions names: `Dimension.label`."""
    for name, row in DIMENSIONS.items():
        value, spec = getattr(config, name), row.spec
        if spec.only_in and set(spec.only_in).isdisjoint(config.modes):
            continue
        if "{}" in spec.label:
            yield spec.label.format(value)
        elif spec.label and value != row.default:
            yield spec.label


def _of_drafts(config: EngineConfig) -> Iterator[str]:
    speculates = not set(SPEC_MODES).isdisjoint(config.modes)
    if speculates and config.draft_tokens != config.spec_steps + 1:
        yield "draft tokens other than steps+1"
    if "target_verify" in config.modes and 0 < config.sliding_window < config.draft_tokens:
        yield "window<draft tokens"


def _of_step(config: EngineConfig, step: ReplayStep) -> Iterator[str]:
    yield f"mode {step.mode}"
    yield f"via {step.via}"
    raw, padded = raw_size(step), padded_size(config, step) or 0
    yield from _of_ranks(config, step)
    if step.mode == "idle":
        return
    if step.via == "graph":
        yield "above ladder" if not padded else "raw<padded" if raw < padded else "raw=padded"
        if padded and step.mode == "prefill":
            yield "prefill raw<padded" if raw < padded else "prefill raw=padded"
        yield from _when(
            one_padded_row=padded - raw == 1 and step.mode != "prefill",
            largest_graph=padded > 0 and padded == ladder(config, step.mode)[-1],
        )
        yield from _of_local_count(config, raw, padded)
    yield from _of_lengths(config, step)
    encoders = {row.encoder_len for row in step.rows}
    if 0 in encoders and len(encoders) > 1 and max(encoders) == config.max_encoder_len:
        yield "encoder lengths 0 and longest mixed"
    if step.mode == "draft_extend":
        accepted = [row.new_tokens for row in step.rows]
        yield from _when(
            accept_0=0 in accepted,
            accept_all=config.draft_tokens in accepted,
            accept_ragged=len(set(accepted)) > 1,
            accept_none_at_all=not any(accepted),
        )
    if step.mode == "target_verify":
        yield from _when(
            fewer_drafts_than_places=any(row.new_tokens < config.draft_tokens for row in step.rows)
        )
    if step.mode == "prefill":
        tokens = [row.new_tokens for row in step.rows]
        yield from _when(
            prefill_ragged=len(set(tokens)) > 1,
            prefill_with_history=any(row.seq_len > row.new_tokens for row in step.rows),
            prompt_as_long_as_a_draft=config.draft_tokens in tokens,
            prefill_far_above_the_ladder=not padded and raw > 2 * config.capture_tokens[-1],
        )


def _of_ranks(config: EngineConfig, step: ReplayStep) -> Iterator[str]:
    """What the other data-parallel ranks have beside this one."""
    if config.dp_size == 1:
        return
    own, most = raw_size(step), max(rank_sizes(config, step))
    alone = captured_size(config, step.mode, own)
    yield from _when(
        other_ranks_alike=len({*rank_sizes(config, step)}) == 1,
        other_ranks_prefill=step.others_prefill,
        other_ranks_idle=own > 0 and not any(step.other_ranks or (own,)),
        other_ranks_busy_and_this_one_idle=own == 0 < most,
        other_ranks_choose_the_graph=alone is not None and alone != padded_size(config, step),
        other_ranks_at_a_captured_size=most > own and most in ladder(config, step.mode),
    )


def _of_local_count(config: EngineConfig, raw: int, padded: int) -> Iterator[str]:
    if config.attn_tp_size == 1 or not padded:
        return
    share = -(-padded // config.attn_tp_size)
    local = min(max(raw - share * config.attn_tp_rank, 0), share)
    yield from _when(local_count_below_padded=local < share, rank_without_live_rows=local == 0)


def _of_lengths(config: EngineConfig, step: ReplayStep) -> Iterator[str]:
    page, context, window = config.page_size, config.max_context_len, config.sliding_window
    lengths = {row.seq_len for row in step.rows}
    yield from _named(lengths, {"len=1": 1, "len=context-1": context - 1, "len=context": context})
    for name, row in DIMENSIONS.items():
        if row.spec.edge and getattr(config, name) != row.default:
            yield from _named(lengths, _edges(row.spec.edge, getattr(config, name)))
    if page > 1:
        yield from _when(
            later_page_just_full=any(n > page and n % page == 0 for n in lengths),
            later_page_just_begun=any(n > page + 1 and n % page == 1 for n in lengths),
            last_page_of_the_context=any(-(-n // page) == -(-context // page) for n in lengths),
        )
    if window:
        yield from _named(lengths, {"len=window+2": window + 2})
    for group in group_configs(config)[1:]:
        freed = (row.seq_len - row.new_tokens - group.sliding_window for row in step.rows)
        yield from _when(pages_freed_behind_the_window=max(freed, default=0) >= group.page_size)
    if config.split_kv and max(lengths, default=0) > config.split_kv:
        yield "several splits"
    if step.mode == "target_verify" and context - config.draft_tokens + 1 in lengths:
        yield "len=context-drafts+1"
    if step.mode in SPEC_MODES and any(
        length > context - config.draft_tokens for length in lengths
    ):
        yield "drafts reach past the context"
    if len(lengths) > 1:
        yield "ragged lengths"
    total = sum(row.seq_len for row in step.rows)
    if config.capture_bs and total > config.capture_bs[-1] * -(-context // page):
        yield "sum of lengths beyond max_bs * pages of a context"


def _edges(what: str, edge: int) -> dict[str, int]:
    return {f"len={what}-1": edge - 1, f"len={what}": edge, f"len={what}+1": edge + 1}


def _named(values: set[int], edges: dict[str, int]) -> Iterable[str]:
    return (name for name, edge in edges.items() if edge in values)


def _of_sizes(case: Case) -> Iterator[str]:
    sizes = [len(step.rows) for step in case.steps if step.mode != "idle"]
    steps = len(case.steps)
    yield f"{steps} steps" if steps < 5 else "5 steps or more"
    yield from (f"{size} rows" for size in sorted(set(sizes)))
    yield from _when(
        shrinking_batch=any(a > b for a, b in pairwise(sizes)),
        growing_batch=any(a < b for a, b in pairwise(sizes)),
        repeated_size=any(a == b for a, b in pairwise(sizes)),
    )
    for before, here, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        yield from _when(
            shrinking_twice=before > here > after,
            small_large_small=before < here > after,
            large_small_large=before > here < after,
        )


def _of_neighbours(case: Case) -> Iterator[str]:
    config, steps = case.config, case.steps
    for before, here in pairwise(steps):
        first, second = replayed_size(config, before), replayed_size(config, here)
        shrunk_by = first - second if first and second else 0
        same_kind = before.mode == here.mode
        yield from _when(
            repeated_step=before.rows == here.rows and same_kind and bool(here.rows),
            interleaved_modes=not same_kind and "idle" not in (before.mode, here.mode),
            same_graph_twice=same_kind and first is not None and first == second,
            smaller_graph_after_larger=same_kind and shrunk_by > 0,
            optional_input_present_then_absent=before.mrope and not here.mrope,
            optional_input_absent_then_present=here.mrope and not before.mrope,
        )
    for before, here, after in zip(steps, steps[1:], steps[2:], strict=False):
        if None not in (replayed_size(config, before), replayed_size(config, after)):
            above = here.via == "graph" and padded_size(config, here) is None
            yield from _when(
                eager_between_graphs=here.via == "eager",
                larger_eager_between_graphs=above,
                idle_between_graphs=here.mode == "idle",
                modes_there_and_back=before.mode == after.mode != here.mode != "idle",
            )


def _of_lifecycle(config: EngineConfig, steps: tuple[ReplayStep, ...]) -> Iterator[str]:
    live: dict[int, int] = {}
    parked: set[int] = set()
    left = False
    for index, step in enumerate(steps):
        for request in step.finish:
            live.pop(request, None)
        left = left or bool(step.finish)
        here = {row.request: row.seq_len for row in step.rows}
        added = set(here) - set(live)
        yield from _when(
            finished_request=bool(step.finish),
            all_finished=bool(step.finish) and not live,
            row_reused=left and bool(added),
            added_later=index > 0 and bool(added),
            continued_request=bool(set(here) & set(live)),
            grown_by_one=any(live.get(name, 0) + 1 == size > 1 for name, size in here.items()),
            length_rolled_back=any(live.get(name, 0) > size for name, size in here.items()),
            parked_request=bool(set(live) - set(here)),
            parked_request_returns=bool(parked & set(here) & set(live)),
        )
        live.update(here)
        full = len(live) == config.req_pool_size
        page, context = config.page_size, config.max_context_len
        yield from _when(
            request_pool_full=full,
            KV_pool_full=full and all(-(-n // page) == -(-context // page) for n in live.values()),
        )
        parked = (parked | set(live)) - set(here)


def _of_freed_rows(case: Case) -> Iterator[str]:
    """What newcomers have in common with the last owner of their row of the request pool."""
    free = FreeList(case.page_order, case.seed, FIRST_ROW, case.config.req_pool_size)
    rows: dict[int, int] = {}
    lengths: dict[int, int] = {}  # row -> length of its owner, or of the last one
    for step in case.steps:
        free.give_back(rows.pop(request) for request in step.finish)
        for each in step.rows:
            if each.request not in rows:
                (row,) = free.take(1)
                rows[each.request] = row
                if lengths.get(row) == each.seq_len - 1:
                    yield "row reused by a request one token longer"
            lengths[rows[each.request]] = each.seq_len
