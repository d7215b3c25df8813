"""What the minimiser tries: candidates simpler than a case, boldest first.

Each pass yields candidates of one kind, grouped by the site that they change; whether one still
fails is the minimiser's question. Once a candidate is taken, a pass is begun again on the better
case, and the sites that were through are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.strategies.fitting import fitted, with_config, with_steps

__all__ = ["PASSES", "Candidate"]

Candidate = tuple[object, Case]
"""The site changed, and the case with it changed."""
T = TypeVar("T")
_replace = msgspec.structs.replace
_DEFAULTS = EngineConfig()
_FEATURES: tuple[tuple[str, ...], ...] = (
    ("num_q_heads", "num_kv_heads", "head_dim", "v_head_dim"),
    ("attn_tp_size", "attn_tp_rank"),
    ("dtype", "kv_dtype"),
    ("kernels",),
    ("metadata",),
    ("attention",),
    ("page_map",),
    ("split_kv",),
    ("sliding_window",),
    ("max_encoder_len",),
    ("recurrent_state",),
    ("spec_topk",),
    ("spec_steps",),
    ("draft_tokens",),
    ("page_size",),
    ("free_padding",),
    ("seq_len_fill_value",),
    ("runner",),
    ("prefill_runner",),
    ("eager_above_ladder",),
    ("req_pool_size",),
    ("num_q_heads", "num_kv_heads"),
    ("head_dim", "v_head_dim"),
    ("dtype",),
    ("kv_dtype",),
    ("attn_tp_rank",),
)
"""Fields that go back to their defaults together."""
_NUMBERS = (
    "page_size",
    "sliding_window",
    "split_kv",
    "max_encoder_len",
    "spec_topk",
    "spec_steps",
    "draft_tokens",
    "attn_tp_size",
    "attn_tp_rank",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "v_head_dim",
    "max_context_len",
    "req_pool_size",
)


_LEAST: tuple[dict[str, int], ...] = (
    {"seq_len": 1, "new_tokens": 0, "encoder_len": 0},
    {"encoder_len": 0},
    {"seq_len": 1},
)


def _cuts(items: Sequence[T]) -> Iterator[list[T]]:
    """What is left when a chunk is cut out: halves first, then quarters, down to single items."""
    size = max(1, len(items) // 2)
    while size:
        for start in range(len(items) - size, -1, -size):
            yield [*items[:start], *items[start + size :]]
        size //= 2


def _smaller(number: int, least: int) -> Iterator[int]:
    """Numbers below, from the smallest: the least ones, then by halving the distance."""
    tried = set()
    for candidate in (least, least + 1, least + 2):
        if candidate < number:
            tried.add(candidate)
            yield candidate
    step = (number - least) // 2
    while step:
        if number - step not in tried:
            yield number - step
        step //= 2


def _map_rows(case: Case, change: Callable[[BatchRow], BatchRow]) -> Case:
    return with_steps(
        case, (_replace(step, rows=tuple(map(change, step.rows))) for step in case.steps)
    )


def _swap_step(case: Case, index: int, **changes: Any) -> Case:
    steps = list(case.steps)
    steps[index] = _replace(steps[index], **changes)
    return with_steps(case, steps)


def _swap_row(case: Case, at: int, place: int, **changes: Any) -> Case:
    rows = list(case.steps[at].rows)
    rows[place] = _replace(rows[place], **changes)
    return _swap_step(case, at, rows=tuple(rows))


def _fewer_steps(case: Case) -> Iterator[Candidate]:
    for steps in _cuts(case.steps):
        if steps:
            yield "steps", with_steps(case, steps)


def _fewer_requests(case: Case) -> Iterator[Candidate]:
    requests = sorted({row.request for step in case.steps for row in step.rows})
    for kept in map(set, _cuts(requests)):
        yield "requests", with_steps(case, [_without(step, kept) for step in case.steps])


def _without(step: ReplayStep, kept: set[int]) -> ReplayStep:
    return _replace(step, rows=tuple(row for row in step.rows if row.request in kept))


def _fewer_rows(case: Case) -> Iterator[Candidate]:
    for index, step in enumerate(case.steps):
        if len(step.rows) > 1:
            for rows in _cuts(step.rows):
                yield index, _swap_step(case, index, rows=tuple(rows))


def _plain_features(case: Case) -> Iterator[Candidate]:
    """Back to the defaults: everything, then chunks of what differs, then single features."""
    differing = [
        group
        for group in _FEATURES
        if any(getattr(case.config, name) != getattr(_DEFAULTS, name) for name in group)
    ]
    if not differing:
        return
    for kept in ([], *_cuts(differing)):
        names = {name for group in differing if group not in kept for name in group}
        plain = {name: getattr(_DEFAULTS, name) for name in names}
        yield "features", with_config(case, **plain)


def _plain_steps(case: Case) -> Iterator[Candidate]:
    """Decode by graph, nobody leaving, nothing optional: everywhere at once, then one by one."""
    indices = range(len(case.steps))
    for changes in ({"mrope": False}, {"via": "graph"}, {"finish": ()}):
        what = next(iter(changes))
        yield what, with_steps(case, [_replace(step, **changes) for step in case.steps])
        for index in indices:
            yield (what, index), _swap_step(case, index, **changes)
    for index, step in enumerate(case.steps):
        for finish in _cuts(step.finish):
            yield index, _swap_step(case, index, finish=tuple(finish))


def _plain_modes(case: Case) -> Iterator[Candidate]:
    """Decode everywhere, or one mode everywhere, then only the modes that are used."""
    with_decode = with_config(case, modes=("decode",), capture_tokens=())
    yield "decode", _in_mode(with_decode, "decode")
    for mode in case.config.modes:
        yield mode, _only_used_modes(_in_mode(case, mode))
    yield "used", _only_used_modes(case)
    wider = with_config(case, modes=tuple(dict.fromkeys(("decode", *case.config.modes))))
    for index, step in enumerate(case.steps):
        if step.mode != "decode" and step.rows:
            yield index, _only_used_modes(_swap_step(wider, index, mode="decode"))


def _in_mode(case: Case, mode: Any) -> Case:
    return with_steps(
        case, (_replace(step, mode=mode) if step.rows else step for step in case.steps)
    )


def _only_used_modes(case: Case) -> Case:
    used = {step.mode for step in case.steps}
    modes = tuple(mode for mode in case.config.modes if mode in used) or case.config.modes[:1]
    tokens = case.config.capture_tokens if "prefill" in modes else ()
    return with_config(case, modes=modes, capture_tokens=tokens)


def _plain_case(case: Case) -> Iterator[Candidate]:
    yield "all", _replace(case, seed=0, page_order="ascending", shared_prefix_pages=0)
    yield "seed", _replace(case, seed=0)
    yield "order", _replace(case, page_order="ascending")
    for pages in _smaller(case.shared_prefix_pages, 0):
        yield "prefix", _replace(case, shared_prefix_pages=pages)


def _smaller_ladders(case: Case) -> Iterator[Candidate]:
    for name in ("capture_bs", "capture_tokens"):
        ladder = getattr(case.config, name)
        for size in _few_sizes(ladder):
            yield (name, "one"), with_config(case, **{name: (size,)})
        for sizes in _cuts(ladder):
            yield (name, "fewer"), with_config(case, **{name: tuple(sizes)})
        for index, size in enumerate(ladder):
            low = ladder[index - 1] + 1 if index else 1
            for smaller in _smaller(size, low):
                lower = (*ladder[:index], smaller, *ladder[index + 1 :])
                yield (name, index), with_config(case, **{name: lower})


def _few_sizes(ladder: tuple[int, ...]) -> list[int]:
    if len(ladder) < 2 and ladder in ((), (1,)):
        return []
    return sorted({1, 2, *ladder}) if len(ladder) > 1 else [1, 2]


def _smaller_numbers(case: Case) -> Iterator[Candidate]:
    for name in _NUMBERS:
        value, default = getattr(case.config, name), getattr(_DEFAULTS, name)
        least = 1 if name == "max_context_len" else default
        if name == "req_pool_size":
            least = 1
        for number in _smaller(value, least):
            yield name, with_config(case, **{name: number})
            if name in ("page_size", "sliding_window", "split_kv"):
                yield name, _rescaled(case, name, number)
            if name == "max_context_len":
                yield name, _lowered(case, number)


def _rescaled(case: Case, name: str, number: int) -> Case:
    """A smaller page (window, split), each length as many of them and about as far into one."""
    edge = getattr(case.config, name)

    def scaled(row: BatchRow) -> BatchRow:
        whole, rest = divmod(row.seq_len, edge)
        return _replace(row, seq_len=whole * number + min(rest, number - 1))

    config = _replace(case.config, **{name: number})
    return _map_rows(_replace(case, config=config), scaled)


def _lowered(case: Case, context: int) -> Case:
    """A shorter context, each length as far from its end."""
    drop = case.config.max_context_len - context
    config = _replace(case.config, max_context_len=context)
    lowered = _map_rows(
        case, lambda row: _replace(row, seq_len=max(1, row.new_tokens, row.seq_len - drop))
    )
    return fitted(_replace(lowered, config=config))


def _smaller_rows(case: Case) -> Iterator[Candidate]:
    for changes in _LEAST:
        yield "all", _map_rows(case, partial(_replace, **changes))
    yield "all", _map_rows(case, lambda row: _replace(row, seq_len=max(1, row.seq_len - 1)))
    for index, step in enumerate(case.steps):
        for place, row in enumerate(step.rows):
            for tokens in _smaller(row.new_tokens, 0):
                yield (index, place, 0), _swap_row(case, index, place, new_tokens=tokens)
            for length in _smaller(row.seq_len, max(1, row.new_tokens)):
                yield (index, place, 1), _swap_row(case, index, place, seq_len=length)


def _smaller_encoders(case: Case) -> Iterator[Candidate]:
    """A request's encoder length is the same in all its rows, so it changes in all of them."""
    lengths = {row.request: row.encoder_len for step in case.steps for row in step.rows}
    for request, length in lengths.items():
        for shorter in _smaller(length, 0):
            yield request, _with_encoder(case, request, shorter)


def _with_encoder(case: Case, request: int, length: int) -> Case:
    return _map_rows(case, lambda row: _encoder(row, request, length))


def _encoder(row: BatchRow, request: int, length: int) -> BatchRow:
    return _replace(row, encoder_len=length) if row.request == request else row


def _merged_requests(case: Case) -> Iterator[Candidate]:
    """One request that continues where two came one after the other."""
    for index, step in enumerate(case.steps):
        for row in step.rows:
            for name in range(row.request):
                merged = _renamed_from(case, index, row.request, name)
                if merged is not None:
                    yield (index, row.request), merged


def _renamed_from(case: Case, index: int, old: int, new: int) -> Case | None:
    """`old` called `new` from step `index` on; None where both are in one step."""
    names = {old: new}
    for step in case.steps[index:]:
        if {old, new} <= {row.request for row in step.rows}:
            return None
    renamed = [_renamed(step, names) for step in case.steps[index:]]
    return with_steps(case, [*case.steps[:index], *renamed])


def _renamed(step: ReplayStep, names: dict[int, int]) -> ReplayStep:
    rows = [_replace(row, request=names.get(row.request, row.request)) for row in step.rows]
    finish = dict.fromkeys(names.get(request, request) for request in step.finish)
    return _replace(step, rows=tuple(rows), finish=tuple(finish))


def _plain_names(case: Case) -> Iterator[Candidate]:
    """Requests numbered in order of arrival, rows in that order."""
    names: dict[int, int] = {}
    for step in case.steps:
        for row in step.rows:
            names.setdefault(row.request, len(names))

    renamed = [_renamed(step, names) for step in case.steps]
    yield "ordered", with_steps(case, map(_in_order, renamed))
    yield "renamed", with_steps(case, renamed)
    yield "sorted", with_steps(case, map(_in_order, case.steps))


def _in_order(step: ReplayStep) -> ReplayStep:
    return _replace(step, rows=tuple(sorted(step.rows, key=lambda row: row.request)))


PASSES: tuple[Callable[[Case], Iterator[Candidate]], ...] = (
    _fewer_steps,
    _fewer_requests,
    _fewer_rows,
    _merged_requests,
    _plain_features,
    _plain_modes,
    _plain_steps,
    _plain_case,
    _smaller_ladders,
    _smaller_numbers,
    _smaller_rows,
    _smaller_encoders,
    _plain_names,
)
"""In the order in which they save most."""
