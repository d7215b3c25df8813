"""What each static input of a decode runner promises, with the lines of sglang that promise it."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT

__all__ = ["FREE_TAIL", "input_fields", "input_names"]

_REGISTRY = "sglang cuda_graph_buffer_registry.py build_decode_registry"
_POOL = (
    "sglang memory_pool.py ReqToTokenPool: row 0 is the padding row, so that reads of padded rows "
    f"land there; {_REGISTRY[7:]}: req_pool_indices ZERO"
)
_SLOT = f"{_REGISTRY}: out_cache_loc ZERO"
_FILL = f"{_REGISTRY}: seq_lens FILL_SENTINEL with the backend's get_cuda_graph_seq_len_fill_value"
_FREE = f"{_REGISTRY}: FOREACH_COPY keeps the tail"
_ONCE = f"{_REGISTRY}: encoder_lens FILL_ONCE keeps the tail; padded rows lie in the padding row"
_COUNT = f"{_REGISTRY}: num_token_non_padded by compute_local_num_token_non_padded"

FREE_TAIL = PaddingRule("free")
_ROW = PaddingRule("reserved", RESERVED_ROW)
_RESERVED_SLOT = PaddingRule("reserved", RESERVED_SLOT)


def input_fields(config: EngineConfig, fill: int) -> tuple[Field, ...]:
    """Declared inputs of one session.

    Args:
        config: of the case.
        fill: length of padded rows, which the backend chooses.
    """
    length = PaddingRule("fill", fill)
    # Before a verify the scheduler's lengths leave out the tokens that it checks.
    lens = "cached_lens" if "target_verify" in config.modes else "seq_lens"
    always = (
        Field("input_ids", "tokens", "nothing", FREE_TAIL, source=_FREE),
        Field("positions", "tokens", "nothing", FREE_TAIL, source=_FREE),
        Field("req_pool_indices", "requests", "row", _ROW, source=_POOL),
        Field("seq_lens", "requests", "length", length, source=_FILL, repeats=lens),
        Field("seq_lens_cpu", "requests", "length", length, source=_FILL, repeats=lens),
        Field("out_cache_loc", "tokens", "slot", _RESERVED_SLOT, source=_SLOT),
    )
    optional = {
        "num_token_non_padded": Field(
            "num_token_non_padded", "scalar", "nothing", FREE_TAIL, source=_COUNT
        ),
        "encoder_lens": Field("encoder_lens", "requests", "length", FREE_TAIL, source=_ONCE),
    }
    names = input_names(config)
    return always + tuple(field for name, field in optional.items() if name in names)


def input_names(config: EngineConfig) -> tuple[str, ...]:
    """Static buffers that a runner for this config fills at every replay."""
    names = ["input_ids", "positions", "req_pool_indices", "seq_lens", "seq_lens_cpu"]
    names.append("out_cache_loc")
    if config.attn_tp_size > 1:
        names.append("num_token_non_padded")
    if config.max_encoder_len:
        names.append("encoder_lens")
    return tuple(names)
