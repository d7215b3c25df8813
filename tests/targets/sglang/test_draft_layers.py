"""Multi-layer EAGLE's draft-extend of released sglang, whose layers attend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.layout import plan
from fuzzgraph.reference.draft_layers import layer_batch
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import extend_case

MUTANTS = "tests.targets.sglang.layer_mutants:"
_PAGES: dict[str, Any] = {"kv_pool_pages": 80, "draft_tokens": 4}
FA3 = "sglang-multi-layer-draft-extend"
TRITON = "sglang-triton-multi-layer"
_ON: dict[str, dict[str, Any]] = {
    FA3: {"page_size": 1},
    TRITON: {"page_size": 4},
    "sglang-trtllm-mha-multi-layer": {"page_size": 16},
}
released = [pytest.mark.sglang, pytest.mark.slow]


def full(target: str = FA3, **settings: Any) -> Case:
    """Batches that need no padding, of which each leaves something to the next one."""
    given = {**_PAGES, **_ON[target], "max_context_len": 64, "capture_bs": (2,), **settings}
    return extend_case((1, 3), (4, 2), (2, 4), **given)


class TestReleases:
    pytestmark = released

    @pytest.mark.parametrize("chained", [False, True])
    @pytest.mark.parametrize("window", [0, 3])
    @pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
    def test_each_layer_sees_its_own_past_and_the_tokens_that_it_takes(
        self, workers: Workers, version: str, window: int, chained: bool
    ) -> None:
        case = full(chain_hidden_states=chained, swa_window=window)
        assert workers.findings(version, case, FA3) == ()

    @pytest.mark.parametrize("target", [*_ON][1:])
    @pytest.mark.parametrize(("version", "window"), [("0.5.15", 0), ("0.5.23", 0), ("0.5.23", 3)])
    def test_so_it_does_on_other_backends(
        self, workers: Workers, version: str, window: int, target: str
    ) -> None:
        case = full(target, swa_window=window)
        assert workers.findings(version, case, target) == ()

    @pytest.mark.parametrize(
        ("bug", "target", "buffer", "settings"),
        [
            ("window_table_not_stored", FA3, "layer_swa_attention", {"swa_window": 3}),
            ("tokens_not_moved_on", FA3, "layer_attention", {}),
            ("token_behind_the_last", FA3, "chained_tokens", {}),
            ("hidden_states_not_handed_on", FA3, "chained_hidden", {"chain_hidden_states": True}),
            ("keys_of_the_first_layer", TRITON, "layer_attention", {}),
            ("lengths_of_the_step_before", TRITON, "layer_attention", {}),
        ],
    )
    def test_what_layers_are_handed_is_judged(
        self, workers: Workers, bug: str, target: str, buffer: str, settings: dict[str, Any]
    ) -> None:
        found = workers.findings("0.5.23", full(target, **settings), f"{MUTANTS}{bug}")
        assert ("reference", buffer) in {(each.oracle, each.buffer) for each in found}

    def test_what_a_graph_writes_for_the_next_layer_is_judged(self, workers: Workers) -> None:
        found = workers.findings("0.5.12", full(), f"{MUTANTS}token_before_the_last")
        assert ("reference", "chained_tokens") in {(each.oracle, each.buffer) for each in found}


def test_later_layers_take_later_tokens() -> None:
    (batch,) = plan(extend_case((2, 0), draft_tokens=4))
    later = layer_batch(batch, 2)
    tokens = batch.kv_tokens.row(0)
    predicted = (5 * tokens[-1] + 1) % 32
    expected = [*tokens[2:], predicted, (5 * predicted + 1) % 32]
    assert later.kv_tokens.row(0).tolist() == expected
    assert later.input_ids.tolist() == expected[-2:]
    assert np.array_equal(later.kv_slots.values, batch.kv_slots.values)
    assert layer_batch(batch, 0) is batch


@pytest.mark.parametrize("target", _ON)
def test_a_draft_of_one_token_has_no_layer(target: str) -> None:
    config = EngineConfig(modes=("draft_extend",), draft_tokens=1, **_ON[target])
    said = open_target(target).unsupported(config)
    assert said == "draft_tokens=1 leaves no layer"
