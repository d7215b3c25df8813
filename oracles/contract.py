"""Clause "metadata and capture tell the truth": what can be judged from one step alone.

Which rule of `rules.metadata` a field is held to, and with which facts of the batch, is said here
once: the oracle applies these `Claim`s, and an exported script prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fuzzgraph.accesses import Misuse
from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.case.capture_sizes import counts_tokens
from fuzzgraph.fields import ADAPTER_POOLS, PADDED_OF_RANKS, TOLD
from fuzzgraph.finding import Clause, Finding, Stage
from fuzzgraph.observation import Field, Observation, PaddingRule, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.reference import capture_truth, drafts_see, live_tokens, live_truth
from fuzzgraph.rules import metadata
from fuzzgraph.rules.comparison import first_difference
from fuzzgraph.rules.writes import moved_text
from fuzzgraph.world import RESERVED_PAGE, RESERVED_SLOT, Batch, IntArray

_PLACES = "draft_width"
"""`Field.truth` of how many tokens each row is handed over with, where all rows have as many."""

Breach = tuple[str, str]
"""Field name and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One rule that a field is held to."""

    rule: Callable[..., Iterator[str]]
    """Takes the field's name, what `fields` hold, and `facts` by name."""
    fields: tuple[str, ...]
    """The field itself and those that it is read with."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Plain values of the batch: numbers, text and lists of numbers."""


class Contract:
    """Shapes, ranges, ownership, reserved rows, addresses, capture values and metadata types."""

    name = "contract"
    clause: Clause = "metadata"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for name, message in self._breaches(step):
            yield claim(
                step, self.name, self.clause, buffer=name, symptom="broken_contract",
                message=message,
            )  # fmt: skip
        for misuse, stage in _misuses(step):
            yield claim(
                step, self.name, self.clause, buffer=misuse.argument, symptom="broken_contract",
                message=str(misuse), stage=stage,
            )  # fmt: skip
        if (seen := step.runs.get("replay")) is not None:
            yield from self._at_capture(step, seen)

    def _at_capture(self, step: StepRecord, seen: Observation) -> Iterable[Finding]:
        """Values that the graph saw at its capture, by the rule that the replay follows."""
        fields = {field.name: field for field in step.fields}
        for name in step.owed_at_capture:
            if name not in step.at_capture:
                yield claim(
                    step, self.name, self.clause, buffer=name, symptom="missing", stage="capture",
                    message=f"{name} is not handed over as the graph saw it at its capture",
                )  # fmt: skip
        for name, got in step.at_capture.items():
            declared, want = fields.get(name), None
            if declared is not None:
                want = capture_truth(declared, seen, step.batch.mode, step.config)
            if want is None:
                continue
            worst = first_difference(got.reshape(-1), torch.full_like(got, want).reshape(-1))
            if worst is not None:
                message = f"{name}{worst} at capture, by the rule that the replay follows"
                yield claim(
                    step, self.name, self.clause, buffer=name, symptom="broken_contract",
                    message=message, stage="capture", want=want,
                )  # fmt: skip

    def _breaches(self, step: StepRecord) -> Iterator[Breach]:
        seen = step.runs.get("replay")
        if seen is None:
            return
        values = {name: _host(tensor) for name, tensor in seen.metadata.items()}
        for declared in step.fields:
            if declared.name in seen.metadata:
                for each in claims_of(declared, step, seen):
                    got = [values[name] for name in each.fields]
                    for message in each.rule(declared.name, *got, **each.facts):
                        yield declared.name, message
        yield from _address_breaches(step)
        yield from _engagement_breaches(step, seen)
        for name, actual in seen.types.items():
            needed = seen.types.get(f"{name}.needed", actual)
            if needed != actual:
                yield name, f"{name} is {actual}, the forward needs {needed}: it was not upgraded"


def _host(tensor: torch.Tensor) -> metadata.Entries:
    """NumPy's view of a tensor on the host: small integers are read several times faster so."""
    if tensor.is_floating_point():
        return tensor  # only its dtype is looked at, and NumPy does not have all of them
    return tensor.cpu().numpy()


def claims_of(declared: Field, step: StepRecord, seen: Observation) -> Iterator[Claim]:
    """The rules for an observed field, in the order in which breaches are told."""
    name, axis, (batch, config) = declared.name, declared.axis, _in_group(declared, step)
    only = (name,)
    promised = {"dtype": declared.promised_dtype, "selects": declared.selects}
    if promised["dtype"] or declared.selects != "nothing":
        yield Claim(metadata.has_dtype, only, promised)
    if seen.metadata[name].is_floating_point():
        return
    if axis == "indptr":
        yield Claim(metadata.offsets_ascend, only, {"padded_bs": seen.padded_bs})
        yield from _live(metadata.steps_match, declared, step, seen)
        yield from _span_claims(declared, step, seen)
    elif axis == "indices":
        if (offsets := name.replace("_indices", "_indptr")) in seen.metadata:
            yield Claim(
                metadata.names_own_slots, (name, offsets), _slot_facts(declared, step, seen)
            )
    elif axis == "page_table":
        yield Claim(metadata.names_own_pages, only, _page_facts(declared, step))
    elif name == "num_token_non_padded" and declared.truth != TOLD:
        facts = {
            "live": live_tokens(batch.num_tokens, seen.padded_tokens, config),
            "tokens": seen.num_tokens,
            "padded_tokens": seen.padded_tokens,
            "rank": config.attn_tp_rank,
            "ranks": config.attn_tp_size,
        }
        yield Claim(metadata.counts_live_tokens, only, facts)
    elif name == "seq_lens_sum" and "seq_lens" in seen.metadata:
        facts = {"padded_bs": seen.padded_bs}
        yield Claim(metadata.holds_sum, (name, "seq_lens"), facts)
    elif axis in ("requests", "tokens"):
        yield from _row_claims(declared, step, seen)
    elif declared.truth == ADAPTER_POOLS:
        allowed = [list(pool) for pool in batch.adapter_pools]
        yield Claim(metadata.is_one_of, only, {"allowed": allowed})
    elif axis == "scalar":
        yield from _live(metadata.holds_live, declared, step, seen)
    if declared.selects == "length":
        yield Claim(metadata.is_not_negative, only)


def _in_group(declared: Field, step: StepRecord) -> tuple[Batch, EngineConfig]:
    """The step and its config as the layers see it whose KV cache group the field is about."""
    return step.batch.groups[declared.group], group_configs(step.config)[declared.group]


def _live(
    rule: Callable[..., Iterator[str]], declared: Field, step: StepRecord, seen: Observation
) -> Iterator[Claim]:
    if declared.truth == TOLD:
        yield Claim(rule, (declared.name,), {"live": seen.told[declared.name]})
        return
    if declared.truth == PADDED_OF_RANKS:
        each = [seen.padded_tokens] * step.config.dp_size
        yield Claim(rule, (declared.name,), {"live": each})
        return
    truth = live_truth(declared, *_in_group(declared, step))
    if truth is not None:
        yield Claim(rule, (declared.name,), {"live": truth.tolist()})


def _row_claims(declared: Field, step: StepRecord, seen: Observation) -> Iterator[Claim]:
    """Of a field with an entry for each request or token."""
    only = (declared.name,)
    if declared.axis == "requests":
        live, padded = seen.raw_bs, seen.padded_bs
    else:
        live, padded = seen.num_tokens, seen.padded_tokens
    sizes = {"padded": padded}
    if declared.truth == _PLACES:
        room = {"padded_bs": padded, "tokens": seen.padded_tokens}
        yield Claim(metadata.counts_no_more_than_there_are, only, room)
    if declared.axis == "tokens" and "draft" in (step.batch.mode, step.config.modes[0]):
        # The tokens of a draft are those of all its steps; a field may have its branches only.
        sizes["branches"] = seen.padded_bs * step.config.spec_topk
    yield Claim(metadata.has_entries, only, sizes)
    yield from _live(metadata.holds_live, declared, step, seen)
    for rule, start, stop in _padded_parts(declared, step, seen, live, padded):
        if rule.kind != "free":
            facts = {**_padding_facts(declared, rule, start, stop), "kind": rule.kind}
            yield Claim(metadata.holds_padding, only, facts)


def _span_claims(declared: Field, step: StepRecord, seen: Observation) -> Iterator[Claim]:
    """Of offsets whose padded rows span a promised number of entries."""
    for rule, start, stop in _padded_parts(declared, step, seen, seen.raw_bs, seen.padded_bs):
        if rule.kind == "fill":
            facts = _padding_facts(declared, rule, start, stop)
            yield Claim(metadata.spans_padding, (declared.name,), facts)


def _padded_parts(
    declared: Field, step: StepRecord, seen: Observation, live: int, padded: int
) -> Iterator[tuple[PaddingRule, int, int]]:
    """The rules of what no request is behind, each with the entries or rows it is about."""
    dummies = min(seen.dummy_rows, padded - live) if declared.dummy is not None else 0
    if declared.dummy is not None and dummies:
        yield declared.dummy, live, live + dummies
    yield declared.padding_in(step.batch.mode), live + dummies, padded


def _padding_facts(declared: Field, rule: PaddingRule, start: int, stop: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"live": start, "stop": stop, "value": rule.value}
    if declared.source:
        facts["source"] = declared.source
    return facts


def _slot_facts(declared: Field, step: StepRecord, seen: Observation) -> dict[str, Any]:
    (batch, config), encoder = _in_group(declared, step), declared.name.startswith("encoder")
    if declared.selects == "page":
        return _listed_page_facts(batch, config, seen)
    slots = batch.encoder_slots if encoder else batch.kv_slots
    own = [slots.row(row).tolist() for row in range(batch.raw_bs)]
    return {
        "own": own,
        "drafted": [[] if encoder else _drafted(batch, row) for row in range(batch.raw_bs)],
        "padded_bs": seen.padded_bs,
        "reserved": RESERVED_SLOT,
        "needed": _needed_slots(batch, config, own),
        # A table of pages leads every entry of a padded row into the reserved page.
        **({"sink": config.page_size} if step.config.virtual_pages else {}),
    }


def _needed_slots(batch: Batch, config: EngineConfig, own: list[list[int]]) -> list[list[int]]:
    """Those of each row's slots that must be listed: all that a draft sees, and a decode's."""
    if config.draft_window_size:
        seen = drafts_see(batch, config)
        return [
            [slot for slot, listed in zip(slots, row, strict=False) if listed]
            for slots, row in zip(own, seen.tolist(), strict=True)
        ]
    whole = batch.mode == "decode" and not config.sliding_window
    return own if whole else [[] for _ in own]


def _listed_page_facts(batch: Batch, config: EngineConfig, seen: Observation) -> dict[str, Any]:
    """Of pages that are listed one row behind the other."""
    used = (-(-batch.seq_lens // config.page_size)).tolist()
    own = [batch.pages.row(row)[: used[row]].tolist() for row in range(batch.raw_bs)]
    return {
        "own": own,
        "drafted": [[] for _ in range(batch.raw_bs)],
        "padded_bs": seen.padded_bs,
        "reserved": RESERVED_PAGE,
        "needed": [[] for _ in own] if config.sliding_window else own,
        "what": "page",
    }


def _drafted(batch: Batch, row: int) -> list[int]:
    """Slots of a draft's new tokens, which batch row `row` may read beside its history."""
    if batch.mode != "draft":
        return []
    per_row = len(batch.slot_mapping) // batch.raw_bs
    drafted: list[int] = batch.slot_mapping[row * per_row : (row + 1) * per_row].tolist()
    return drafted


def _drafted_pages(batch: Batch, config: EngineConfig, row: int) -> IntArray:
    """Pages of a row and of the branch that is drafted behind its past."""
    slots = np.append(batch.kv_slots.row(row), np.array(_drafted(batch, row), dtype=np.int64))
    pages: IntArray = slots[:: config.page_size] // config.page_size
    return pages


def _page_facts(declared: Field, step: StepRecord) -> dict[str, Any]:
    batch, config = _in_group(declared, step)
    padding, rows = declared.padding_in(batch.mode), range(batch.raw_bs)
    pages, lens = [batch.pages.row(row) for row in rows], batch.seq_lens
    seen = live_truth(declared, batch, config) if batch.mode == "draft" else None
    if seen is not None:
        pages, lens = [_drafted_pages(batch, config, row) for row in rows], seen
    if declared.name.startswith("encoder"):
        page, lens = config.page_size, batch.encoder_lens
        pages = [batch.encoder_slots.row(row)[::page] // page for row in rows]
    return {
        "pages": [each.tolist() for each in pages],
        "seq_lens": lens.tolist(),
        "page_size": config.page_size,
        "padding": padding.kind,
        "value": RESERVED_PAGE if padding.kind == "reserved" else padding.value,
        # A window that shares its pages with other layers may shift them; one that has its own
        # leaves each at its place.
        "in_order": declared.group > 0 or not config.sliding_window,
    }


def _misuses(step: StepRecord) -> Iterator[tuple[Misuse, Stage | None]]:
    """What kernels were given against their rules, with the stage; once where runs agree."""
    stage: Stage | None = "capture" if step.index < 0 else None
    yield from ((misuse, stage) for misuse in step.misuses)
    told = {(misuse.kernel, misuse.argument, misuse.rule) for misuse in step.misuses}
    for misuse in step.eager_misuses:
        if (misuse.kernel, misuse.argument, misuse.rule) not in told:
            yield misuse, "eager"


def _graph_size(step: StepRecord, seen: Observation) -> int:
    """Rows of the graph that was replayed, or its tokens where graphs are captured by them."""
    tokens = counts_tokens(step.config, step.batch.mode) or seen.agreed_tokens
    return seen.padded_tokens if tokens else seen.padded_bs


def _engagement_breaches(step: StepRecord, seen: Observation) -> Iterator[Breach]:
    if step.engagements and step.batch.others_prefill:
        # They wait in the collectives of a batch without a graph, which this rank never enters.
        yield "graph", "a graph was replayed although other data-parallel ranks compute prompts"
    elif step.engagements == ():
        yield "graph", "no graph was replayed although the batch fits the captured sizes"
    elif step.engagements and not seen.ranks_apart:
        # Collectives inside the graphs wait for one another: all ranks replay one size.
        size, least = _graph_size(step, seen), seen.agreed_tokens or step.batch.largest_rank
        if size < least:
            yield (
                "graph",
                f"a graph of {size} was replayed, the largest data-parallel rank has {least}",
            )
    for engaged in step.engagements or ():
        if engaged.python_calls:
            yield (
                "graph",
                f"a replay ran the captured Python again ({engaged.python_calls} calls): it was no"
                " replay",
            )
        for output in engaged.unwritten:
            # What read poison and passed it on looks the same.
            yield (
                "graph",
                f"after the replay {output} holds the poison from before it: nothing wrote it, or"
                " only poison was read for it",
            )


def _address_breaches(step: StepRecord) -> Iterator[Breach]:
    for change in step.address_changes:
        yield change.name, moved_text(change.name)
    for name, captured, now in step.dtype_changes:
        yield name, f"{name} is {now} now; the graph captured and reads {captured}"
