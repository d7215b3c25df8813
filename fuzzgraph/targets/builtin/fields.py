"""What the built-in engine promises about its replay metadata, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.fields import PADDED_OF_RANKS
from fuzzgraph.observation import Axis, Field, PaddingRule, Selects
from fuzzgraph.targets.builtin.second_layer import SECOND
from fuzzgraph.targets.builtin.slots import MROPE_ABSENT
from fuzzgraph.world import RESERVED_PAGE, RESERVED_ROW, RESERVED_SLOT

_FREE = PaddingRule("free")
_NULL = PaddingRule("reserved", 0)
_SLOT = PaddingRule("reserved", RESERVED_SLOT)


def _input(
    name: str, axis: Axis, selects: Selects, padding: PaddingRule, dtype: str, repeats: str = ""
) -> Field:
    """An input buffer: its live rows are rewritten, the others follow its policy."""
    source = f"targets/builtin/slots.py {name}"
    return Field(name, axis, selects, padding, False, source, repeats, dtype=dtype)


def _built(
    name: str,
    axis: Axis,
    selects: Selects,
    padding: PaddingRule,
    file: str,
    repeats: str = "",
    dtype: str = "int32",
) -> Field:
    """A metadata buffer: `build` rewrites all that is used; a first offset is 0 for good."""
    source = f"targets/builtin/metadata/{file}"
    return Field(name, axis, selects, padding, True, source, repeats, dtype=dtype)


def _constant(
    name: str, axis: Axis, selects: Selects, padding: PaddingRule, file: str, repeats: str
) -> Field:
    """A metadata buffer of which some is written once only."""
    source = f"targets/builtin/metadata/{file}"
    return Field(name, axis, selects, padding, False, source, repeats, dtype="int32")


def declared_fields(config: EngineConfig) -> tuple[Field, ...]:
    """All fields of all modes of `config`."""
    return (*_inputs(config), *_metadata(config), *_draft_steps(config), *_of_second_layer(config))


def _of_second_layer(config: EngineConfig) -> Iterator[Field]:
    """The same metadata for a second layer, about the pages of its KV cache group."""
    for group, shape in enumerate(group_configs(config)[1:], start=1):
        yield from (
            replace(field, name=SECOND + field.name, group=group, repeats=field.truth)
            for field in _metadata(shape)
        )
        loc = _input("swa_out_cache_loc", "tokens", "slot", _SLOT, "int64", "slot_mapping")
        yield replace(loc, group=group)


def _inputs(config: EngineConfig) -> Iterator[Field]:
    length, row = (
        PaddingRule("fill", config.seq_len_fill_value),
        PaddingRule("reserved", RESERVED_ROW),
    )
    yield _input("req_pool_indices", "requests", "row", row, "int32")
    yield _input("seq_lens", "requests", "length", length, "int32")
    yield _input("new_lens", "requests", "length", length, "int32")
    yield _input("encoder_lens", "requests", "length", PaddingRule("fill", 0), "int32")
    yield _input("state_indices", "requests", "state", _NULL, "int64")
    yield _input("draft_cache_loc", "requests", "slot", _SLOT, "int64", "slot_mapping")
    yield _input("tree_mask", "requests", "nothing", PaddingRule("fill", 0), "int32", "tree")
    yield _input("out_cache_loc", "tokens", "slot", _SLOT, "int64")
    yield _input("input_ids", "tokens", "nothing", _FREE, "int64")
    yield _input("positions", "tokens", "nothing", _FREE, "int64")
    yield _input("mrope", "tokens", "nothing", PaddingRule("fill", MROPE_ABSENT), "int64")
    yield _input("num_token_non_padded", "scalar", "length", _NULL, "int32")
    yield _input("rank_tokens", "scalar", "length", _NULL, "int32", PADDED_OF_RANKS)


def _metadata(config: EngineConfig) -> Iterator[Field]:
    length, page = (
        PaddingRule("fill", config.seq_len_fill_value),
        PaddingRule("reserved", RESERVED_PAGE),
    )
    yield _built("kv_lens", "requests", "length", length, "builder.py", "listed_lens")
    yield _constant("qo_indptr", "indptr", "offset", _NULL, "builder.py", "new_lens")
    yield _built("mask_indptr", "indptr", "offset", _NULL, "mask.py", "mask_lens")
    yield _built("custom_mask", "scalar", "nothing", _NULL, "mask.py", "mask", "uint8")
    yield _built("page_table", "page_table", "page", page, "page_table.py")
    yield _built("kv_last_page_len", "requests", "length", length, "page_table.py")
    encoder = "listed_encoder_lens"
    yield _built("encoder_kv_indptr", "indptr", "offset", _NULL, "kv_indices.py", encoder)
    yield _built("encoder_kv_indices", "indices", "slot", _SLOT, "kv_indices.py")
    yield from _page_map("", "listed_lens", "")


def _draft_steps(config: EngineConfig) -> Iterator[Field]:
    """Fields of each step of a draft; their rows are branches."""
    if "draft" in config.modes:
        for step in range(config.spec_steps):
            lens = f"draft_lens:{step}"
            yield _built(f"kv_lens@{step}", "scalar", "length", _NULL, "draft.py", lens)
            yield from _page_map(f"@{step}", lens, f":{step}")


def _page_map(suffix: str, lens: str, step: str) -> Iterator[Field]:
    """Page map and split plan of one launch, whose rows have so many keys."""
    name = "work_plan.py"
    yield _built(f"kv_indptr{suffix}", "indptr", "offset", _NULL, "kv_indices.py", lens)
    yield _built(f"kv_indices{suffix}", "indices", "slot", _SLOT, "kv_indices.py")
    offsets, items = f"chunk_offsets{step}", f"item_tokens{step}"
    chunks, valid = f"item_chunks{step}", f"items_valid{step}"
    yield _constant(f"merge_indptr{suffix}", "scalar", "offset", _NULL, name, offsets)
    yield _built(f"plan_tokens{suffix}", "scalar", "row", _NULL, name, items)
    yield _built(f"plan_chunks{suffix}", "scalar", "offset", _NULL, name, chunks)
    yield _built(f"plan_valid{suffix}", "scalar", "nothing", _NULL, name, valid, "uint8")
