"""What a field of replay metadata must hold for a batch, as statements of a script.

The rules are those of the contract oracle; the values come from the logical batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.finding import Finding
from fuzzgraph.observation import Field, Observation
from fuzzgraph.reference import live_truth
from fuzzgraph.repro.trace import Recording
from fuzzgraph.world import RESERVED_PAGE, RESERVED_SLOT, Batch, IntArray

__all__ = ["Claims", "claims_of"]


@dataclass(frozen=True, slots=True)
class Claims:
    """Fields to look at, and the statements that judge them."""

    tensors: dict[str, torch.Tensor]
    lines: list[str]


def claims_of(
    finding: Finding, recording: Recording, seen: Observation, batch: Batch, config: EngineConfig
) -> Claims | None:
    """What `finding.buffer` must hold; None where no observed field has a rule for it."""
    name = finding.buffer
    moved = recording.opened.session.captured_addresses()
    if name in moved and "another address" in finding.message:
        return _address_claims(name, recording, *moved[name])
    if "at capture" in finding.message:
        return None
    fields = {each.name: each for each in recording.opened.session.fields}
    if name not in fields or name not in seen.metadata:
        return None
    field = fields[name]
    tensors = {name: seen.metadata[name]}
    if field.axis == "indptr":
        body = _offset_lines(field, live_truth(field, batch, config), seen)
    elif field.axis == "indices":
        offsets = name.replace("_indices", "_indptr")
        if offsets not in seen.metadata:
            return None
        tensors[offsets] = seen.metadata[offsets]
        body = _index_lines(name, offsets, batch, seen)
    elif field.axis == "page_table":
        body = _page_lines(name, batch, config)
    elif name == "num_token_non_padded":
        body = _count_lines(name, batch, seen, config)
    elif field.axis in ("requests", "tokens"):
        body = _row_lines(field, live_truth(field, batch, config), seen)
    else:
        body = _live_lines(field, live_truth(field, batch, config))
    body = [*_dtype_lines(field), *body]
    if field.selects == "length":
        body += [
            "if got.numel() and int(got.min()) < 0:",
            f'    wrong.append(f"{name} holds the negative length {{int(got.min())}}")',
        ]
    if not body:
        return None
    head = [f"got = seen[{name!r}].cpu()", "wrong = []"]
    return Claims(tensors, [*head, *body, "return report(wrong)"])


def _address_claims(
    name: str, recording: Recording, now: torch.Tensor, captured: int
) -> Claims | None:
    """The buffer that the engine writes is the one that the graph reads."""
    offset = recording.offset(captured)
    if offset is None:
        return None
    frozen = recording.memory.arena.view(offset, now.shape, now.stride(), now.dtype)
    return Claims(
        {"the graph reads": frozen, "the engine writes": now},
        [
            'reads, writes = seen["the graph reads"], seen["the engine writes"]',
            "wrong = []",
            "if reads.data_ptr() != writes.data_ptr():",
            f"    wrong.append({name + ' lies at another address than the graph captured'!r})",
            '    wrong.append(f"the graph reads    {reads.flatten()[:16].tolist()}")',
            '    wrong.append(f"the engine writes  {writes.flatten()[:16].tolist()}")',
            "return report(wrong)",
        ],
    )


def _dtype_lines(field: Field) -> list[str]:
    """The dtype is what the engine promises."""
    if not (wanted := field.promised_dtype):
        return []
    return [
        f"if got.dtype != torch.{wanted}:",
        f'    wrong.append(f"{field.name} must be {wanted}; got {{got.dtype}}")',
    ]


def _row_lines(field: Field, truth: IntArray | None, seen: Observation) -> list[str]:
    """Live entries hold what the batch says, padded ones what the field declares for them."""
    by_request = field.axis == "requests"
    live = seen.raw_bs if by_request else seen.num_tokens
    padded = seen.padded_bs if by_request else seen.padded_tokens
    lines = [
        f"if len(got) != {padded}:",
        f'    wrong.append(f"{field.name} has {{len(got)}} entries for {padded} padded rows")',
        *_live_lines(field, truth),
    ]
    if field.padding.kind != "free":
        lines += [
            f"for row in range({live}, len(got)):  # padded rows: {_padding_text(field)}",
            f"    if set(got[row].flatten().tolist()) != {{{field.padding.value}}}:",
            f'        wrong.append(f"{field.name}[{{row}}] of a padded row is '
            f'{{got[row].tolist()}}, must be {field.padding.value}")',
        ]
    return lines


def _live_lines(field: Field, truth: IntArray | None) -> list[str]:
    if truth is None:
        return []
    return [
        f"live = {truth.tolist()}  # what the batch says",
        "flat = got.flatten().tolist()",
        "if len(flat) < len(live):",
        f'    wrong.append(f"{field.name} has {{len(flat)}} entries for {{len(live)}} live ones")',
        "for row, (value, want) in enumerate(zip(flat, live)):",
        "    if value != want:",
        f'        wrong.append(f"{field.name}[{{row}}] is {{value}}, the batch says {{want}}")',
    ]


def _count_lines(name: str, batch: Batch, seen: Observation, config: EngineConfig) -> list[str]:
    """The live tokens of one rank: the padded token axis is cut evenly among the ranks."""
    rank, ranks = config.attn_tp_rank, config.attn_tp_size
    return [
        f"share = -(-{seen.padded_tokens} // {ranks})  # padded tokens of each of {ranks} ranks",
        f"live = max(0, min({batch.num_tokens} - {rank} * share, share))",
        "if len(got.flatten()) and int(got.flatten()[0]) != live:",
        f'    wrong.append(f"{name} is {{int(got.flatten()[0])}}, rank {rank} of {ranks} has'
        f' {{live}} live tokens of {batch.num_tokens}")',
    ]


def _padding_text(field: Field) -> str:
    words = {"reserved": "the reserved one", "fill": "the fill value", "skip": "the skip value"}
    return words.get(field.padding.kind, field.padding.kind)


def _offset_lines(field: Field, truth: IntArray | None, seen: Observation) -> list[str]:
    name = field.name
    lines = [
        f"if (len(got) - 1) % {max(seen.padded_bs, 1)}:",
        f'    wrong.append(f"{name} must hold padded_bs + 1 = {seen.padded_bs + 1} offsets;'
        ' got {len(got)}")',
        "if len(got) and int(got[0]) != 0:",
        f'    wrong.append(f"{name} must start at 0; got {{int(got[0])}}")',
        "falls = (got[1:] < got[:-1]).nonzero().flatten().tolist()",
        "if falls:",
        f'    wrong.append(f"{name} decreases after row {{falls[0]}}: {{got.tolist()}}")',
    ]
    return lines if truth is None else [*lines, *_step_lines(field, truth)]


def _step_lines(field: Field, truth: IntArray) -> list[str]:
    """The steps of live rows are what the batch says."""
    return [
        "steps = (got[1:] - got[:-1]).tolist()",
        f"live = {truth.tolist()}  # what the batch says",
        "if len(steps) < len(live):",
        f'    wrong.append(f"{field.name} has {{len(steps)}} rows for {{len(live)}} live ones")',
        "for row, (step, want) in enumerate(zip(steps, live)):",
        "    if step != want:",
        f'        wrong.append(f"{field.name} gives row {{row}} {{step}} entries, '
        'the batch says {want}")',
    ]


def _index_lines(name: str, offsets: str, batch: Batch, seen: Observation) -> list[str]:
    encoder = name.startswith("encoder")
    owned = []
    per_row = len(batch.slot_mapping) // max(batch.raw_bs, 1) if batch.mode == "draft" else 0
    for row in range(batch.raw_bs):
        slots = batch.encoder_slots.row(row) if encoder else batch.kv_slots.row(row)
        new = [] if encoder else batch.slot_mapping[row * per_row : (row + 1) * per_row].tolist()
        owned.append(sorted({*slots.tolist(), *new}))
    return [
        "# slots that each live row may name; padded rows may name the reserved slot only",
        f"owned = [{''.join(f'{chr(10)}    {part},' for part in owned)}\n]",
        f"indptr = seen[{offsets!r}].tolist()",
        f"branches = max(1, (len(indptr) - 1) // {max(seen.padded_bs, 1)})",
        "for row in range(len(indptr) - 1):",
        f"    live = row // branches < {batch.raw_bs}",
        f"    allowed = owned[row // branches] if live else [{RESERVED_SLOT}]",
        "    part = got[indptr[row]:indptr[row + 1]].tolist()",
        "    strangers = [slot for slot in part if slot not in allowed]",
        "    if strangers:",
        f"        wrong.append(f\"{name} of {{'row' if live else 'padded row'}} {{row}} holds"
        ' slot {strangers[0]}, which is not its own")',
    ]


def _page_lines(name: str, batch: Batch, config: EngineConfig) -> list[str]:
    owned = [batch.pages.row(row).tolist() for row in range(batch.raw_bs)]
    used = [-(-int(length) // config.page_size) for length in batch.seq_lens]
    return [
        f"owned = {owned}  # pages of each live row; padded rows may name page {RESERVED_PAGE}",
        f"used = {used}  # entries that each live row uses",
        "for row in range(len(got)):",
        f"    live = row < {batch.raw_bs}",
        f"    allowed = owned[row] if live else [{RESERVED_PAGE}]",
        "    part = got[row, : used[row] if live else 1].tolist()",
        "    strangers = [page for page in part if page not in allowed]",
        "    if strangers:",
        f"        wrong.append(f\"{name} of {{'row' if live else 'padded row'}} {{row}} holds"
        ' page {strangers[0]}, which is not its own")',
    ]
