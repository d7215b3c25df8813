"""The table of dimensions: what one row says is known everywhere, and no row says too little."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from fuzzgraph.capabilities import WIDEST, Capabilities, missing, unsupported_setting
from fuzzgraph.case import DIMENSIONS, Case, EngineConfig, case_schema, validate
from fuzzgraph.case.dimension import Dimension, DimensionRow, Sizes, rows_of
from fuzzgraph.coverage_values import GROUPS, group_of
from fuzzgraph.errors import InvalidCase, UsageError
from fuzzgraph.strategies.config_features import FEATURES, VARIED_BY

by_row = pytest.mark.parametrize("row", DIMENSIONS.values(), ids=lambda row: row.name)
FOLLOWING = {"kv_pool_pages", "num_kv_heads", "v_head_dim", "spec_steps", "draft_tokens"} | {
    "attention_chunk_size",
    "candidate_blocks",
    "index_group",
    "index_block",
    "pooled_block",
    "dense_len",
    "index_layer",
    "attn_tp_rank",
    "dp_rank",
    "dp_size",
    "ep_rank",
    "ep_size",
    "expert_activation",
    "expert_copies",
    "expert_exchange",
    "expert_groups",
    "expert_quantisation",
    "expert_scoring",
    "experts_per_token",
    "kv_compression",
    "max_loras",
    "lora_eviction",
    "pinned_loras",
    "adapted_embeddings",
    "experts_shared_outer_loras",
    "lora_use_virtual_experts",
    "image_encoder",
    "image_len",
    "num_experts",
    "prefill_slots",
    "chunked_prefix_cache_threshold",
    "max_kv_chunk_capacity",
    "prefix_branches",
    "state_track_interval",
    "sparse_kernel",
    "index_logits_bytes",
    "index_gather_threshold",
    "compute_capability",
    "topk_kernel",
    "state_pool_size",
    "state_ring_len",
    "state_flush_interval",
    "safe_gate",
    "linear_head_dim",
    "even_ranks",
    "all_reduce_kib",
    "unit_kv_scale",
    "drafted_prompts",
    "drafted_blocks",
    "chain_hidden_states",
    "sample_from_anchor",
    "cpu_seq_lens",
    "drafted_window",
    "draft_adapter",
    "draft_branches",
    "draft_reach",
    "draft_sink_size",
    "draft_window_size",
    "later_stage",
    "ngram_drafts",
    "sampling",
    "shared_experts",
    "shared_selection",
    "two_batch_overlap",
    "verify_budget",
    "backend_beside",
    "logit_cap",
    "final_logit_cap",
    "returned_hidden",
    "gathered_logits",
    "prompt_logprobs",
    "layer_types",
    "outer_join",
    "plan_stream",
    "platform",
    "trtllm_kernel",
    "verifies_as_prefill",
    "swa_page_size",
}
"""Fields that another field's feature sets with its own."""


@by_row
def test_a_number_has_bounds_and_its_default_lies_within(row: DimensionRow) -> None:
    if row.number:
        assert row.spec.bounds is not None
        assert row.spec.bounds[0] <= row.default <= row.spec.bounds[1]


@by_row
def test_a_dimension_is_varied_by_its_own_feature_or_with_another(row: DimensionRow) -> None:
    assert (row.spec.feature is None) == (row.name in FOLLOWING)


@by_row
def test_a_label_belongs_to_a_group_of_the_reports(row: DimensionRow) -> None:
    assert bool(row.spec.label) == bool(row.spec.group)
    if row.spec.label:
        assert row.spec.group in GROUPS
        assert group_of(row.spec.label.format(row.default)) == row.spec.group


def test_features_are_numbered_without_gaps() -> None:
    # Another number would change what every config's number draws.
    assert [feature.number for feature in FEATURES] == list(range(len(FEATURES)))


def test_only_dimensions_are_varied_by_name() -> None:
    assert not VARIED_BY.keys() - DIMENSIONS.keys()


@by_row
def test_a_value_beyond_its_bounds_is_refused(row: DimensionRow) -> None:
    if row.spec.bounds is not None:
        beyond: dict[str, Any] = {row.name: row.spec.bounds[1] + 1}
        config = EngineConfig(**beyond)
        with pytest.raises(InvalidCase, match=rf"config\.{row.name}=\d+ must lie in"):
            validate(Case(schema_version=1, config=config, steps=()))


def test_the_schema_has_the_bounds() -> None:
    fields = case_schema()["$defs"]["EngineConfig"]["properties"]
    assert (fields["page_size"]["minimum"], fields["page_size"]["maximum"]) == (1, 1024)
    assert fields["split_kv"]["minimum"] == 0


class Small(msgspec.Struct, frozen=True, kw_only=True):
    """A table of one row."""

    layout: Annotated[Literal["nhd", "hnd"], Dimension(feature=0)] = "nhd"


class Bare(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is no row."""

    layout: Literal["nhd", "hnd"] = "nhd"


def test_a_row_knows_its_default_and_its_choices() -> None:
    row = rows_of(Small)["layout"]
    assert (row.default, row.choices, row.number) == ("nhd", ("nhd", "hnd"), False)


def test_a_field_without_a_row_is_refused() -> None:
    with pytest.raises(TypeError, match="field 'layout' has no Dimension"):
        rows_of(Bare)


def test_capabilities_have_a_field_for_every_rule() -> None:
    for row in DIMENSIONS.values():
        if row.spec.needs is not None:
            assert hasattr(WIDEST, row.spec.needs.name)
            assert hasattr(Capabilities(), row.spec.needs.name)


def test_the_simplest_target_has_the_defaults_alone_and_drives_the_default_config() -> None:
    assert unsupported_setting(Capabilities(), EngineConfig()) is None
    assert Capabilities().page_maps == ("csr",)
    assert WIDEST.page_maps == ("csr", "page_table")
    assert missing(WIDEST) == ()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"page_szies": (1,)}, r"page_szies=\.\.\.\) is not a field. Known: modes, page_sizes"),
        ({"page_maps": ("csr", "coo")}, r"'coo' is not a value of EngineConfig\.page_map"),
        ({"modes": ()}, "must be a non-empty tuple"),
        ({"encoder": 1}, "must be bool"),
        ({"max_batch": True}, "must be int"),
    ],
)
def test_a_wrong_declaration_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Capabilities(**declared)


def test_capabilities_are_values() -> None:
    one, other = Capabilities(page_sizes=(1, 16)), Capabilities(page_sizes=[1, 16])
    assert one == other and hash(one) == hash(other)
    assert one.replace(page_sizes=(1,)) == Capabilities() != one
    with pytest.raises(AttributeError, match="immutable"):
        setattr(one, "page_sizes", (2,))  # noqa: B010  as any attribute


def test_sizes_are_drawn_from_the_list_and_any_saved_one_is_tried() -> None:
    assert isinstance(DIMENSIONS["page_size"].spec.needs, Sizes)
    assert unsupported_setting(Capabilities(), EngineConfig(page_size=7)) is None
