"""What each input of vLLM's V1 runner promises, with the lines of vLLM that promise it."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.fields import PADDED_OF_RANKS, TOLD
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.vllm.answers import answer_fields
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import RESERVED_PAGE

_RUNNER = "vLLM gpu_model_runner.py"
_SLOTS = f"{_RUNNER} _get_slot_mappings: PAD_SLOT_ID behind the live tokens"
_LENS = f"{_RUNNER} _prepare_inputs: zeros behind the live rows"
_TABLE = f"{_RUNNER} _build_attention_metadata: fills the rows behind the live ones"
_POSITIONS = f"{_RUNNER} _preprocess: zeros behind the live tokens"
_OFFSETS = f"{_RUNNER} _prepare_inputs: the offsets of padded rows repeat the last one"
_PREFILLING = f"{_RUNNER} _build_attention_metadata: zeroes padded rows, stale after condense()"
_BY_PAST = "a request that is new to the runner still computes its prompt; " + _RUNNER
_ANSWER = f"{_RUNNER} _bookkeeping_sync: what the rejection sampler keeps"
_DRAFTLESS = "what is verified of a request that is new to the runner counts as its prompt"
_RANKS = "vLLM dp_utils.py _post_process_dp_padding: all ranks of a replay have the largest count"
_PAGES = "vLLM flashinfer.py _compute_flashinfer_kv_metadata: a padded row has no pages"
_NULL_BLOCK = PaddingRule("reserved", RESERVED_PAGE)
"""What a row holds that no request has, and so a dummy row: all releases clear rows to it."""
DUMMY_PREFILLING = "dummy_is_prefilling"
"""`is_prefilling` as an idle rank hands it over."""
_DUMMY = (
    f"{_RUNNER} _dummy_run: a dummy batch decodes; backends of Mamba take flagged rows for prefill"
)


def runner_fields(runner: Any, config: EngineConfig) -> tuple[Field, ...]:
    """What the runner hands every attention backend."""
    # A dummy row computes as many tokens as a decode checks, and has that length, or 1 where the
    # backend's builder says so for captures (0.33.0, Triton).
    several = config.modes == ("target_verify",)
    return (
        common.per_token("input_ids"),
        Field(
            "positions",
            "tokens",
            "nothing",
            _padded_positions(runner),
            source=_POSITIONS,
            in_modes=(("idle", common.FREE),),
        ),
        common.write_slots("slot_mapping", skip=-1, source=_SLOTS),
        Field(
            "seq_lens",
            "requests",
            "length",
            PaddingRule("fill", 0),
            source=_LENS,
            dummy=common.FREE if several else PaddingRule("fill", 1),
            in_modes=(("idle", common.FREE),),
        ),
        Field(
            "block_table",
            "page_table",
            "page",
            _padded_page(),
            source=_TABLE,
            in_modes=(("idle", _NULL_BLOCK),),
            whole_rows=True,
        ),
        common.offsets(
            "query_start_loc",
            repeats="new_lens",
            padding=PaddingRule("fill", 0),
            dummy=PaddingRule("fill", config.draft_tokens if several else 1),
            source=_OFFSETS,
        ),
        Field(
            "is_prefilling",
            "requests",
            "nothing",
            PaddingRule("fill", 0),
            source=_PREFILLING,
            repeats=TOLD,
            past=_BY_PAST,
        ),
        # Apart, because the runner counts all rows of a dummy batch as live ones, and zeroes none.
        Field(
            DUMMY_PREFILLING,
            "requests",
            "nothing",
            PaddingRule("fill", 0),
            source=_DUMMY,
            unjudged="an idle rank has no live rows",
        ),
        *(answer_fields(_ANSWER, _DRAFTLESS) if several else ()),
        common.value("num_tokens_across_dp", repeats=PADDED_OF_RANKS, source=_RANKS),
    )


def page_list_fields() -> tuple[Field, ...]:
    """What FlashInfer's wrappers read in the place of block table and lengths; pages in a row."""
    return (
        common.offsets(
            "paged_kv_indptr", repeats="page_counts", padding=common.FREE, source=_PAGES
        ),
        Field(
            "paged_kv_indices",
            "indices",
            "page",
            PaddingRule("reserved", RESERVED_PAGE),
            rewritten=True,
            source=_PAGES,
            dtype="int32",
        ),
        Field(
            "paged_kv_last_page_len",
            "requests",
            "length",
            PaddingRule("fill", 0),
            source=_PAGES,
            dummy=PaddingRule("fill", 1),
            in_modes=(("idle", common.FREE),),
            repeats="last_page_lens",
        ),
    )


def _padded_positions(runner: Any) -> PaddingRule:
    """Zeros since the runner keeps them on the device alone, and not in a pair of buffers."""
    return PaddingRule("fill", 0) if isinstance(runner.positions, torch.Tensor) else common.FREE


def _padded_page() -> PaddingRule:
    """Older releases pad with a sentinel, later ones with the null block."""
    utils = engine_module("vllm.v1.attention.backends.utils")
    if hasattr(utils, "NULL_BLOCK_ID"):
        return _NULL_BLOCK
    return PaddingRule("skip", -1)
