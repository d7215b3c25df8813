"""What the built-in engine promises about its replay metadata, field by field."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Axis, Contract, Field, Selects
from fuzzgraph.targets.builtin.slots import MROPE_ABSENT
from fuzzgraph.world import RESERVED_PAGE, RESERVED_ROW, RESERVED_SLOT

__all__ = ["declared_fields"]

_FREE = Contract("free")
_NULL = Contract("reserved", 0)
_SLOT = Contract("reserved", RESERVED_SLOT)


def _input(name: str, axis: Axis, selects: Selects, padding: Contract) -> Field:
    """An input buffer: its live rows are rewritten, the others follow its policy."""
    return Field(name, axis, selects, padding, False, f"targets/builtin/slots.py {name}")


def _built(name: str, axis: Axis, selects: Selects, padding: Contract, file: str) -> Field:
    """A metadata buffer: `build` rewrites all that is used; a first offset is 0 for good."""
    return Field(name, axis, selects, padding, True, f"targets/builtin/metadata/{file}")


def _constant(name: str, axis: Axis, selects: Selects, padding: Contract, file: str) -> Field:
    """A metadata buffer of which some is written once only."""
    return Field(name, axis, selects, padding, False, f"targets/builtin/metadata/{file}")


def declared_fields(config: EngineConfig) -> tuple[Field, ...]:
    """All fields of all modes of `config`."""
    return (*_inputs(config), *_metadata(config), *_draft_steps(config))


def _inputs(config: EngineConfig) -> Iterator[Field]:
    length = Contract("fill", config.seq_len_fill_value)
    yield _input("req_pool_indices", "requests", "row", Contract("reserved", RESERVED_ROW))
    yield _input("seq_lens", "requests", "length", length)
    yield _input("new_lens", "requests", "length", length)
    yield _input("encoder_lens", "requests", "length", Contract("fill", 0))
    yield _input("state_indices", "requests", "state", _NULL)
    yield _input("draft_cache_loc", "requests", "slot", _SLOT)
    yield _input("tree_mask", "requests", "nothing", Contract("fill", 0))
    yield _input("out_cache_loc", "tokens", "slot", _SLOT)
    yield _input("input_ids", "tokens", "nothing", _FREE)
    yield _input("positions", "tokens", "nothing", _FREE)
    yield _input("mrope", "tokens", "nothing", Contract("fill", MROPE_ABSENT))
    yield _input("num_token_non_padded", "scalar", "length", _NULL)


def _metadata(config: EngineConfig) -> Iterator[Field]:
    length, page = Contract("fill", config.seq_len_fill_value), Contract("reserved", RESERVED_PAGE)
    yield _built("kv_lens", "requests", "length", length, "builder.py")
    yield _constant("qo_indptr", "indptr", "offset", _NULL, "builder.py")
    yield _built("mask_indptr", "indptr", "offset", _NULL, "mask.py")
    yield _built("custom_mask", "scalar", "nothing", _NULL, "mask.py")
    yield _built("page_table", "page_table", "page", page, "page_table.py")
    yield _built("kv_last_page_len", "requests", "length", length, "page_table.py")
    yield _built("encoder_kv_indptr", "indptr", "offset", _NULL, "kv_indices.py")
    yield _built("encoder_kv_indices", "indices", "slot", _SLOT, "kv_indices.py")
    yield from _page_map("")


def _draft_steps(config: EngineConfig) -> Iterator[Field]:
    """Fields of each step of a draft; their rows are branches."""
    if "draft" in config.modes:
        for step in range(config.spec_steps):
            yield _built(f"kv_lens@{step}", "scalar", "length", _NULL, "draft.py")
            yield from _page_map(f"@{step}")


def _page_map(suffix: str) -> Iterator[Field]:
    yield _built(f"kv_indptr{suffix}", "indptr", "offset", _NULL, "kv_indices.py")
    yield _built(f"kv_indices{suffix}", "indices", "slot", _SLOT, "kv_indices.py")
    yield _constant(f"merge_indptr{suffix}", "scalar", "offset", _NULL, "work_plan.py")
    yield _built(f"plan_tokens{suffix}", "scalar", "row", _NULL, "work_plan.py")
    yield _built(f"plan_chunks{suffix}", "scalar", "offset", _NULL, "work_plan.py")
    yield _built(f"plan_valid{suffix}", "scalar", "nothing", _NULL, "work_plan.py")
