"""What the inputs of EAGLE's speculator promise, with the lines of vLLM that promise it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fuzzgraph.fields import TOLD
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.vllm.served_verified_drafts import Row
from fuzzgraph.world import VOCAB

_SPECULATOR = "vLLM gpu/spec_decode, speculator.py"
_FIRST = f"{_SPECULATOR} _prepare_prefill_inputs_kernel: tokens moved by one, the sampled one last"
_NEXT = f"{_SPECULATOR} _prepare_decode_inputs_kernel: one token of each row, padded ones none"
_SLOTS = "vLLM gpu/block_table.py _compute_slot_mappings_kernel: PAD_SLOT_ID behind the live tokens"
_TABLE = "vLLM gpu/block_table.py _gather_block_tables_kernel zeroes padded rows"
GRAPHS_SOURCE = (
    f"{_SPECULATOR} propose: full graphs for num_speculative_steps + 1 tokens of each row, then for"
    " one of each"
)


def _told(name: str, source: str) -> Field:
    return common.value(name, repeats=TOLD, source=source)


def speculator_fields() -> tuple[Field, ...]:
    """Of the forward over several tokens of a row, then of the next one, and slots of the last."""
    return (
        _told("graphs", GRAPHS_SOURCE),
        _told("first_input_ids", _FIRST),
        _told("first_positions", _FIRST),
        _told("first_slots", _SLOTS),
        _told("first_padded_slots", _SLOTS),
        _told("first_rows", _FIRST),
        Field("input_ids", "requests", "nothing", common.FREE, source=_NEXT, repeats=TOLD),
        Field("positions", "requests", "nothing", common.FREE, source=_NEXT, repeats=TOLD),
        Field(
            "seq_lens",
            "requests",
            "length",
            PaddingRule("fill", 0),
            source=_NEXT,
            repeats="draft_lens:1",
            dummy=common.FREE,
        ),
        common.offsets(
            "query_start_loc",
            repeats="one_each",
            padding=PaddingRule("fill", 0),
            dummy=PaddingRule("fill", 1),
            source=_NEXT,
        ),
        common.page_table("block_table", whole_rows=True, source=_TABLE),
        Field(
            "slot_mapping",
            "requests",
            "slot",
            PaddingRule("skip", -1),
            source=_SLOTS,
            repeats=TOLD,
        ),
    )


def told_of_first(rows: Sequence[Row]) -> dict[str, list[int]]:
    """What the forward over several tokens of a row must start from, row by row."""
    computed = [(row, range(row.computed, row.computed + row.tokens)) for row in rows]
    stay = [(row, range(row.computed, row.past + 1)) for row in rows]
    return {
        "first_input_ids": [row.ids[at] // VOCAB for row, places in stay for at in places],
        "first_positions": [at for _, places in stay for at in places],
        "first_slots": [row.blocks[at] for row, places in computed for at in places],
        "first_rows": [row.new - 1 for row in rows],
    }


def shown_of_first(
    taken: Mapping[str, torch.Tensor], order: Sequence[int], rows: Sequence[Row]
) -> dict[str, torch.Tensor]:
    """The same as it was, and slots behind it.

    Args:
        taken: input_ids, positions and slots of its tokens, padded ones too; the token of each row
            that is sampled from; offsets of the rows. In the engine's order.
        order: row of the engine of each of `rows`.
    """
    first = taken["offsets"].tolist()
    starts = [first[at] for at in order]
    pairs = [*zip(starts, rows, strict=True)]
    stay = [at for start, row in pairs for at in range(start, start + row.new)]
    computed = [at for start, row in pairs for at in range(start, start + row.tokens)]
    return {
        "first_input_ids": taken["input_ids"][stay] % VOCAB,
        "first_positions": taken["positions"][stay],
        "first_slots": taken["slots"][computed],
        "first_padded_slots": taken["slots"][len(computed) :],
        "first_rows": taken["rows"][list(order)] - taken["rows"].new_tensor(starts),
    }
