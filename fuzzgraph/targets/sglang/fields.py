"""What each static input of a decode runner promises, with the lines of sglang that promise it."""

from __future__ import annotations

from dataclasses import replace

from fuzzgraph.case import EngineConfig
from fuzzgraph.fields import PADDED_OF_RANKS, TOLD
from fuzzgraph.observation import Field, PaddingRule, Selects
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.sglang.forward_batch.prefill import TRACKED_LENS

_REGISTRY = "sglang cuda_graph_buffer_registry.py build_decode_registry"
_POOL = (
    "sglang memory_pool.py ReqToTokenPool: row 0 is the padding row, so that reads of padded rows "
    f"land there; {_REGISTRY[7:]}: req_pool_indices ZERO"
)
_SLOT = f"{_REGISTRY}: out_cache_loc ZERO"
_FILL = f"{_REGISTRY}: seq_lens FILL_SENTINEL with the backend's get_cuda_graph_seq_len_fill_value"
_FREE = f"{_REGISTRY}: FOREACH_COPY keeps the tail"
_ONCE = f"{_REGISTRY}: encoder_lens FILL_ONCE keeps the tail; padded rows lie in the padding row"
_IN_FRONT = (
    "sglang prepare_encoder_info_extend: the first columns of a request's row; padded rows lie in "
    "the padding row"
)
_STALE = f"{_ONCE}, with the length that an earlier batch left"
_WINDOW = "sglang attention backends: of each row the last keys that its window shows"
_WINDOW_MAP = "sglang SWATokenToKVPoolAllocator: slot 0 of the map is the padding slot's"
_WINDOW_SLOTS = "sglang attention backends: swa_out_cache_loc is zeroed behind the tokens"
_ONES = "sglang flashinfer_backend.py: indices count tokens, so a last page holds one"
_PLAN = "FlashInfer plan: kernels that read the device's offsets share work out by the host's"
_TRACKED = f"{_REGISTRY}: mamba_track_* ZERO"
_RANKS = f"{_REGISTRY}: global_num_tokens_* hold the padded tokens of every rank"
_COUNT = f"{_REGISTRY}: num_token_non_padded by compute_local_num_token_non_padded"


RANK_COUNTS = ("global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu")
"""Buffers with a count for each data-parallel rank: inside a graph all have its padded tokens. A
rank that shares heads alone has one, of the tokens that its like share."""


def _of_ranks(name: str) -> Field:
    return common.value(name, source=_RANKS, repeats=PADDED_OF_RANKS)


def input_fields(config: EngineConfig, fill: int, lens: str = "") -> tuple[Field, ...]:
    """Declared inputs of one session.

    Args:
        config: of the case.
        fill: length of padded rows, which the backend chooses.
        lens: what lengths of rows are; "" for what they are in the config's mode.
    """
    # Before a verify the scheduler's lengths leave out the tokens that it checks.
    lens = lens or ("cached_lens" if "target_verify" in config.modes else "seq_lens")
    always = (
        common.per_token("input_ids", source=_FREE),
        common.per_token("positions", source=_FREE),
        common.request_rows(source=_POOL),
        common.lengths("seq_lens", fill=fill, repeats=lens, source=_FILL),
        common.lengths("seq_lens_cpu", fill=fill, repeats=lens, source=_FILL),
        common.write_slots("out_cache_loc", source=_SLOT),
    )
    optional = {
        "num_token_non_padded": common.value("num_token_non_padded", source=_COUNT),
        **{name: _of_ranks(name) for name in RANK_COUNTS},
        "encoder_lens": Field("encoder_lens", "requests", "length", common.FREE, source=_ONCE),
        "mamba_track_indices": track_slots(_TRACKED),
        "mamba_track_mask": _tracked("mamba_track_mask", "nothing", "state_tracked"),
    }
    names = input_names(config)
    return always + tuple(field for name, field in optional.items() if name in names)


TRACKED_PROMPTS = ("mamba_track_indices", "mamba_track_mask", TRACKED_LENS)
"""What a batch of prompts says of the states that the prefix cache keeps."""


def tracked_fields(config: EngineConfig) -> tuple[Field, ...]:
    """What a batch of prompts says of the states that the prefix cache keeps."""
    if not config.state_track_interval:
        return ()
    _, mask, lens = TRACKED_PROMPTS
    return (
        track_slots(_TRACKED),
        _tracked(mask, "nothing", "state_tracked"),
        _tracked(lens, "nothing", TOLD),
    )


def _tracked(name: str, selects: Selects, repeats: str, source: str = _TRACKED) -> Field:
    """What a batch says of the states that the prefix cache keeps."""
    zero = PaddingRule("fill", 0)
    return Field(name, "requests", selects, zero, source=source, repeats=repeats)


def track_slots(source: str) -> Field:
    """Where the state of each row goes that the prefix cache keeps next; padded rows have none."""
    return _tracked("mamba_track_indices", "state", "track_slots", source)


def window_fields(lens: str) -> tuple[Field, ...]:
    """What kernels of a layer behind a sliding window read, whose KV is in a pool of its own.

    Args:
        lens: what is listed of each row: `windowed_lens`, or `windowed_past` where kernels take a
            verify's own tokens from elsewhere.
    """
    own = (
        common.page_table("swa_page_table", source=_WINDOW_MAP),
        common.write_slots("swa_out_cache_loc", source=_WINDOW_SLOTS),
        common.offsets("window_kv_indptr", repeats=lens, source=_WINDOW),
        common.slot_indices("window_kv_indices", rewritten=True, source=_WINDOW),
        common.lengths("window_kv_last_page_len", fill=1, repeats="one_each", source=_ONES),
        common.offsets("planned_window_kv_indptr", repeats=lens, source=_PLAN),
    )
    return tuple(replace(field, group=1) for field in own)


def encoder_fields() -> tuple[Field, ...]:
    """What kernels of a layer over the tokens of an encoder read.

    Lengths of padded rows are those of an earlier batch, and so is what follows from them.
    """
    lens = "encoder_lens"
    own = (
        Field("encoder_cache_seqlens", "requests", "length", common.FREE, source=_ONCE,
              repeats=lens),
        common.offsets("encoder_cu_seqlens_k", repeats=lens, source=_ONCE),
        common.page_table("encoder_page_table", source=_IN_FRONT),
        common.offsets("encoder_kv_indptr", repeats=lens, source=_ONCE),
        common.slot_indices("encoder_kv_indices", source=_IN_FRONT),
        common.lengths("encoder_kv_last_page_len", fill=1, repeats="one_each", source=_ONES),
        common.offsets("planned_encoder_kv_indptr", repeats=lens, source=_PLAN),
    )  # fmt: skip
    return tuple(replace(field, past=_STALE) for field in own)


def input_names(config: EngineConfig) -> tuple[str, ...]:
    """Static buffers that a runner for this config fills at every replay."""
    names = ["input_ids", "positions", "req_pool_indices", "seq_lens", "seq_lens_cpu"]
    names.append("out_cache_loc")
    if max(config.attn_tp_size, config.dp_size, config.ep_size) > 1:
        names.append("num_token_non_padded")
    if max(config.attn_tp_size, config.dp_size) > 1:
        names += RANK_COUNTS
    if config.max_encoder_len:
        names.append("encoder_lens")
    # A server that speculates keeps states behind a verify, without the runner (sglang
    # decode_cuda_graph_runner.py, enable_mamba_track).
    if config.state_track_interval and config.modes == ("decode",):
        names += ["mamba_track_indices", "mamba_track_mask"]
    return tuple(names)
