"""What differs between draft models: what a config may say, and how often cases have it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.case.config_rules import validate_config
from fuzzgraph.errors import InvalidCase
from fuzzgraph.strategies import CI
from fuzzgraph.strategies.configs import swarm_config

BLOCKS = EngineConfig(
    modes=("target_verify",), drafted_blocks="whole", draft_tokens=4, kv_pool_pages=256
)
DRAFTS = Capabilities(
    modes=("target_verify",),
    drafted_blocks=("whole", "causal"),
    max_draft_tokens=8,
    given_anchors=True,
    cpu_seq_lens=True,
)
LAYERS = Capabilities(modes=("draft_extend",), max_draft_tokens=4, chained_layers=True)
GROUPS = Capabilities(modes=("draft",), index_groups=(4,), shared_selections=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"chain_hidden_states": True},
        {"outer_join": True},
        {"sample_from_anchor": False, "draft_tokens": 1},
        {"sample_from_anchor": False, "drafted_blocks": "none"},
        {"cpu_seq_lens": True, "modes": ("decode",), "drafted_blocks": "none"},
    ],
)
def test_what_another_draft_model_has_is_refused(changes: dict[str, Any]) -> None:
    name = next(iter(changes))
    with pytest.raises(InvalidCase, match=f"config.{name}=.* needs"):
        validate_config(msgspec.structs.replace(BLOCKS, **changes))


def test_a_third_of_the_blocks_begin_with_a_token_that_is_given() -> None:
    drawn = [swarm_config(DRAFTS, CI, number) for number in range(240)]
    longer = [each for each in drawn if each.draft_tokens > 1 and each.drafted_blocks != "none"]
    given = sum(not each.sample_from_anchor for each in longer)
    assert 0.25 < given / len(longer) < 0.42
    assert all(each.sample_from_anchor for each in drawn if each not in longer)


def test_a_third_of_the_prompts_are_joined_outside() -> None:
    can = Capabilities(modes=("prefill",), prefill_runners=("breakable",), outer_joins=True)
    drawn = [swarm_config(can, CI, number).outer_join for number in range(240)]
    assert 0.25 < sum(drawn) / len(drawn) < 0.42


@pytest.mark.parametrize(
    ("can", "name"),
    [(DRAFTS, "cpu_seq_lens"), (LAYERS, "chain_hidden_states"), (GROUPS, "shared_selection")],
)
def test_half_of_the_configs_have_what_a_target_has(can: Capabilities, name: str) -> None:
    drawn = [getattr(swarm_config(can, CI, number), name) for number in range(200)]
    assert 0.42 < sum(drawn) / len(drawn) < 0.58


def test_lengths_on_the_host_say_nothing_of_anchors() -> None:
    drawn = [swarm_config(DRAFTS, CI, number) for number in range(240)]
    met = {(each.cpu_seq_lens, each.sample_from_anchor) for each in drawn}
    assert met == {(False, False), (False, True), (True, False), (True, True)}
