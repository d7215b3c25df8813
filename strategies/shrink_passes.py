"""What the minimiser tries: candidates simpler than a case, boldest first.

Each pass yields candidates of one kind, grouped by the site that they change; whether one still
fails is the minimiser's question. Once a candidate is taken, a pass is begun again on the better
case, and the sites that were through are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fuzzgraph.case import DIMENSIONS, Case, ReplayStep
from fuzzgraph.case.config_rules import set_among
from fuzzgraph.strategies.repair import with_config, with_steps
from fuzzgraph.strategies.shrink_edits import Candidate, cuts, map_rows, smaller, swap_step
from fuzzgraph.strategies.shrink_sizes import (
    later_lengths,
    lower_for_life,
    smaller_ladders,
    smaller_numbers,
    smaller_ranks,
    smaller_rows,
)

_replace = msgspec.structs.replace


def _reset_groups() -> list[tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for name, row in DIMENSIONS.items():
        if row.spec.resets_with or not row.spec.size:
            groups.setdefault(row.spec.resets_with or name, []).append(name)
    return list(map(tuple, groups.values()))


_RESET_GROUPS = _reset_groups()
"""Fields that go back to their defaults together."""


def _fewer_steps(case: Case) -> Iterator[Candidate]:
    for steps in cuts(case.steps):
        if steps:
            yield "steps", with_steps(case, steps)


def _fewer_requests(case: Case) -> Iterator[Candidate]:
    requests = sorted({row.request for step in case.steps for row in step.rows})
    for kept in map(set, cuts(requests)):
        yield "requests", with_steps(case, [_without(step, kept) for step in case.steps])


def _fewer_longer(case: Case) -> Iterator[Candidate]:
    """One request, two or three, at full length, on an engine just large enough for them.

    What needs much of something is often shown by one long request as well as by many short ones.
    """
    requests = sorted({row.request for step in case.steps for row in step.rows})
    longest = map_rows(case, lambda row: _replace(row, seq_len=case.config.max_context_len))
    for count in range(1, min(4, len(requests))):
        for kept in (set(requests[:count]), set(requests[-count:])):
            few = with_steps(longest, [_without(step, kept) for step in longest.steps])
            yield "longer", few
            yield "longer", with_config(few, capture_bs=(count,), req_pool_size=count)


def _without(step: ReplayStep, kept: set[int]) -> ReplayStep:
    return _replace(step, rows=tuple(row for row in step.rows if row.request in kept))


def _fewer_rows(case: Case) -> Iterator[Candidate]:
    for index, step in enumerate(case.steps):
        if len(step.rows) > 1:
            for rows in cuts(step.rows):
                yield index, swap_step(case, index, rows=tuple(rows))


def _plain_features(case: Case) -> Iterator[Candidate]:
    """Back to the defaults: everything, then chunks of what differs, then single features."""
    differing = [group for group in _RESET_GROUPS if set_among(case.config, group)]
    if not differing:
        return
    for kept in ([], *cuts(differing)):
        names = {name for group in differing if group not in kept for name in group}
        plain = {name: DIMENSIONS[name].default for name in names}
        yield "features", with_config(case, **plain)


def _plain_steps(case: Case) -> Iterator[Candidate]:
    """Decode by graph, nobody leaving, nothing optional: everywhere at once, then one by one."""
    indices = range(len(case.steps))
    for changes in (
        {"mrope": False}, {"via": "graph"}, {"finish": ()}, {"others_prefill": False},
        {"other_ranks": (), "others_prefill": False},
    ):  # fmt: skip
        what = next(iter(changes))
        yield what, with_steps(case, [_replace(step, **changes) for step in case.steps])
        for index in indices:
            yield (what, index), swap_step(case, index, **changes)
    for index, step in enumerate(case.steps):
        for finish in cuts(step.finish):
            yield index, swap_step(case, index, finish=tuple(finish))


def _plain_modes(case: Case) -> Iterator[Candidate]:
    """Decode everywhere, or one mode everywhere, then only the modes that are used."""
    with_decode = with_config(case, modes=("decode",), capture_tokens=())
    yield "decode", _in_mode(with_decode, "decode")
    if case.config.capture_tokens:  # as many rows as a prefill's graphs have tokens
        by_rows = with_config(with_decode, capture_bs=case.config.capture_tokens)
        yield "decode", _in_mode(by_rows, "decode")
    for mode in case.config.modes:
        yield mode, _only_used_modes(_in_mode(case, mode))
    yield "used", _only_used_modes(case)
    wider = with_config(case, modes=tuple(dict.fromkeys(("decode", *case.config.modes))))
    for index, step in enumerate(case.steps):
        if step.mode != "decode" and step.rows:
            yield index, _only_used_modes(swap_step(wider, index, mode="decode"))


def _in_mode(case: Case, mode: Any) -> Case:
    return with_steps(case, (_step_in_mode(step, mode) for step in case.steps))


def _step_in_mode(step: ReplayStep, mode: Any) -> ReplayStep:
    """The step with rows that the mode can have; a verify gets all its drafts."""
    if not step.rows or step.mode == mode:
        return step
    rows = step.rows
    if mode == "target_verify":
        rows = tuple(_replace(row, new_tokens=0) for row in rows)
    return _replace(step, mode=mode, rows=rows)


def _only_used_modes(case: Case) -> Case:
    used = {step.mode for step in case.steps}
    modes = tuple(mode for mode in case.config.modes if mode in used) or case.config.modes[:1]
    tokens = case.config.capture_tokens if "prefill" in modes else ()
    return with_config(case, modes=modes, capture_tokens=tokens)


def _plain_case(case: Case) -> Iterator[Candidate]:
    yield "all", _replace(case, seed=0, page_order="ascending", shared_prefix_pages=0)
    yield "seed", _replace(case, seed=0)
    yield "order", _replace(case, page_order="ascending")
    for pages in smaller(case.shared_prefix_pages, 0):
        yield "prefix", _replace(case, shared_prefix_pages=pages)


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
    _fewer_longer,
    _merged_requests,
    _plain_features,
    _plain_modes,
    _plain_steps,
    _plain_case,
    smaller_ladders,
    smaller_numbers,
    smaller_rows,
    lower_for_life,
    smaller_ranks,
    _plain_names,
    later_lengths,
)
"""In the order in which they save most."""
