"""What the built-in engine promises about its replay metadata, field by field."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Axis, Contract, Field, Selects
from fuzzgraph.world import RESERVED_PAGE, RESERVED_ROW, RESERVED_SLOT

__all__ = ["declared_fields"]

_FREE = Contract("free")
_SLOTS = "targets/builtin/slots.py"
_METADATA = "targets/builtin/metadata"


def _input(name: str, axis: Axis, selects: Selects, padding: Contract) -> Field:
    """An input buffer: only its live rows are rewritten, the rest follows its policy."""
    return Field(name, axis, selects, padding, False, f"{_SLOTS} {name}")


def _built(
    name: str, axis: Axis, selects: Selects, padding: Contract, file: str = "kv_indices.py"
) -> Field:
    """A metadata buffer: `build` rewrites all that is used, but for the first of its offsets."""
    return Field(name, axis, selects, padding, axis != "indptr", f"{_METADATA}/{file}")


def _merge(name: str) -> Field:
    """Offsets of a plan: one row for each token, so no indptr over request rows."""
    return Field(name, "scalar", "offset", _FREE, False, f"{_METADATA}/work_plan.py")


def declared_fields(config: EngineConfig) -> tuple[Field, ...]:
    """All fields of all modes of `config`."""
    slot, length = Contract("reserved", RESERVED_SLOT), Contract("fill", config.seq_len_fill_value)
    fields = [
        _input("req_pool_indices", "requests", "row", Contract("reserved", RESERVED_ROW)),
        _input("seq_lens", "requests", "length", length),
        _input("new_lens", "requests", "length", length),
        _input("encoder_lens", "requests", "length", Contract("fill", 0)),
        _input("state_indices", "requests", "state", Contract("reserved", 0)),
        _input("draft_cache_loc", "requests", "slot", slot),
        _input("tree_mask", "requests", "nothing", Contract("fill", 0)),
        _input("out_cache_loc", "tokens", "slot", slot),
        _input("input_ids", "tokens", "nothing", _FREE),
        _input("positions", "tokens", "nothing", _FREE),
        _input("mrope", "tokens", "nothing", _FREE),
        _input("num_token_non_padded", "scalar", "length", _FREE),
        _built("qo_indptr", "indptr", "offset", _FREE, "builder.py"),
        _built("mask_indptr", "indptr", "offset", _FREE, "mask.py"),
        _built("custom_mask", "scalar", "nothing", _FREE, "mask.py"),
        _built("kv_last_page_len", "requests", "length", _FREE, "page_table.py"),
        _built(
            "page_table", "page_table", "page", Contract("reserved", RESERVED_PAGE), "page_table.py"
        ),
        _built("encoder_kv_indptr", "indptr", "offset", _FREE),
        _built("encoder_kv_indices", "indices", "slot", slot),
    ]
    for suffix in ("", *(f"@{step}" for step in range(config.spec_steps))):
        fields += [
            _built(f"kv_lens{suffix}", "requests", "length", _FREE, "builder.py"),
            _built(f"kv_indptr{suffix}", "indptr", "offset", _FREE),
            _built(f"kv_indices{suffix}", "indices", "slot", slot),
            _merge(f"merge_indptr{suffix}"),
            _built(f"plan_tokens{suffix}", "scalar", "row", _FREE, "work_plan.py"),
            _built(f"plan_chunks{suffix}", "scalar", "offset", _FREE, "work_plan.py"),
            _built(f"plan_valid{suffix}", "scalar", "nothing", _FREE, "work_plan.py"),
        ]
    return tuple(fields)
