"""Blocks that a model drafts by one forward: what their tokens are, see and have."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.reference.draft_model import draft_model_outputs
from fuzzgraph.reference.geometry import drafted_start, queries_of
from fuzzgraph.strategies import CI, DEFAULT
from fuzzgraph.strategies.configs import base_config, swarm_config
from fuzzgraph.world import PLACEHOLDER, Batch


def block(*rows: int, **settings: Any) -> tuple[Batch, EngineConfig]:
    """Rows of these lengths, the last three tokens of each a block."""
    given = {"drafted_blocks": "whole", "draft_tokens": 3, "max_context_len": 16, **settings}
    config = EngineConfig(modes=("target_verify",), **given)
    step = ReplayStep(
        mode="target_verify",
        rows=tuple(
            BatchRow(request=name, seq_len=length, new_tokens=3) for name, length in enumerate(rows)
        ),
    )
    case = validate(Case(schema_version=1, config=config, steps=(step,)))
    return plan(case)[0], config


def test_placeholders_stand_behind_the_first_token_of_a_block() -> None:
    batch, _ = block(5, 8)
    assert batch.input_ids.reshape(2, 3)[:, 1:].tolist() == [[PLACEHOLDER] * 2] * 2
    assert batch.kv_tokens.row(0)[-2:].tolist() == [PLACEHOLDER] * 2


@pytest.mark.parametrize(("kind", "seen"), [("whole", [5, 5, 5]), ("causal", [3, 4, 5])])
def test_a_token_sees_the_whole_block_or_what_lies_before_it(kind: str, seen: list[int]) -> None:
    found = queries_of(*block(5, drafted_blocks=kind))
    assert found.visible.sum(1).tolist() == seen


def test_a_window_begins_with_the_page_that_its_first_token_lies_in() -> None:
    batch, config = block(13, 6, drafted_window=3, page_size=4)
    assert drafted_start(batch, config).tolist() == [4, 0]
    assert queries_of(batch, config).visible.sum(1).tolist() == [9] * 3 + [6] * 3


def test_drafts_are_those_behind_each_token_but_the_first() -> None:
    batch, config = block(5, 8)
    outputs = draft_model_outputs(expected(batch, config).outputs["attention"], batch, config)
    assert len(outputs["block_tokens"]) == 4
    assert len(outputs["block_hidden"]) == 6


def test_all_tokens_of_a_draft_but_the_first_have_the_models_own_adapter() -> None:
    batch, _ = block(5, 8, drafted_blocks="causal", draft_adapter=True)
    assert batch.token_adapters.tolist() == [0, 1, 1] * 2
    verified, _ = block(5, 8, drafted_blocks="none", draft_adapter=True)
    assert not verified.token_adapters.any()


@pytest.mark.parametrize(
    "beside",
    [
        {"spec_topk": 2},
        {"sliding_window": 4},
        {"modes": ("decode",)},
        {"drafted_blocks": "none", "drafted_window": 4, "modes": ("decode",)},
        {"drafted_blocks": "none", "drafted_window": 4, "recurrent_state": True},
        {"draft_adapter": True, "max_loras": 1},
    ],
)
def test_a_block_beside_what_bounds_its_keys_is_refused(beside: dict[str, Any]) -> None:
    given = {"modes": ("target_verify",), "drafted_blocks": "whole", **beside}
    with pytest.raises(InvalidCase, match="draft"):
        validate(Case(schema_version=1, config=EngineConfig(**given), steps=()))


@pytest.mark.parametrize(
    "beside",
    [{"modes": ("decode",)}, {"draft_adapter": True}, {"drafted_blocks": "causal"}],
)
def test_ngram_drafts_beside_a_model_that_drafts_are_refused(beside: dict[str, Any]) -> None:
    given = {"modes": ("target_verify",), "ngram_drafts": True, **beside}
    with pytest.raises(InvalidCase, match="ngram_drafts"):
        validate(Case(schema_version=1, config=EngineConfig(**given), steps=()))


def test_a_part_of_the_verifies_of_a_target_that_has_them_are_of_ngram_drafts() -> None:
    can = Capabilities(modes=("target_verify",), ngram_drafts=True, max_spec_topk=2)
    found = [swarm_config(can, DEFAULT, number) for number in range(100)]
    assert 20 < sum(config.ngram_drafts for config in found) < 50
    without = can.replace(ngram_drafts=False)
    assert not any(swarm_config(without, DEFAULT, number).ngram_drafts for number in range(100))


def test_targets_that_do_not_draft_blocks_draw_none() -> None:
    verifies = Capabilities(modes=("target_verify",))
    assert base_config(verifies, CI).drafted_blocks == "none"
    drafts = verifies.replace(drafted_blocks=("whole", "causal"))
    assert base_config(drafts, CI).drafted_blocks != "none"
