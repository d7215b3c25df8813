"""Request slots of full prefill graphs, how they expand what is cached, and images in prompts: what
a case may say, and means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS, BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.case.images import image_tokens
from fuzzgraph.case.prefix_parts import MOST_PARTS, merged_parts
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.strategies import CI, cases, draw
from fuzzgraph.strategies.coherent_prompts import prefix_chunks
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.strategies.draws import Draws

_FULL = EngineConfig(
    modes=("prefill",), capture_bs=(), capture_tokens=(8,), prefill_runner="full", prefill_slots=2
)
_CAN = Capabilities(
    modes=("prefill",), prefill_runners=("full",), max_prefill_slots=4, images=True, max_batch=4
)


def _case(config: EngineConfig, *steps: ReplayStep) -> Case:
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"prefill_runner": "breakable"},
            "are those of full graphs; got prefill_runner='breakable'",
        ),
        ({"req_pool_size": 1}, "must be at most req_pool_size=1"),
        ({"image_len": 2, "swa_window": 2}, "is of prompts, for a model with layers of one kind"),
        (
            {"image_len": 2, "modes": ("prefill", "decode"), "capture_bs": (1,)},
            "is of prompts, for a model with layers of one kind",
        ),
        (
            {"image_encoder": True, "sliding_window": 2},
            "needs modes=.'prefill'. and layers that see images or their windows alone; got .*",
        ),
        (
            {"chunked_prefix_cache_threshold": 1},
            r"is of prompts of latent attention in full graphs; got .* attention='mha'",
        ),
        (
            {
                "max_kv_chunk_capacity": 8,
                "attention": "mla",
                "prefill_runner": "breakable",
                "prefill_slots": 1,
            },
            r"is of prompts of latent attention in full graphs; got .*prefill_runner='breakable'",
        ),
        ({"max_kv_chunk_capacity": 7, "attention": "mla"}, "must be at least req_pool_size=8"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCase, match=said):
        _case(msgspec.structs.replace(_FULL, **changes))


def test_requests_with_even_names_begin_with_an_image() -> None:
    config = msgspec.structs.replace(_FULL, image_len=3)
    assert [image_tokens(config, request) for request in range(4)] == [3, 0, 3, 0]


def test_every_prompt_of_a_model_with_images_has_multi_modal_positions() -> None:
    step = ReplayStep(mode="prefill", rows=(BatchRow(request=0, seq_len=3, new_tokens=3),))
    (text,) = plan(_case(_FULL, step))
    (image,) = plan(_case(msgspec.structs.replace(_FULL, image_len=2), step))
    assert text.mrope is None
    assert image.mrope is not None and len(image.mrope) == 3


_IMAGES = EngineConfig(
    modes=("prefill",), capture_bs=(), capture_tokens=(8,), max_context_len=8, image_encoder=True
)


def test_an_image_has_no_past() -> None:
    with pytest.raises(InvalidCase, match="must be new_tokens=2: an image has no past"):
        row = BatchRow(request=0, seq_len=3, new_tokens=2)
        _case(_IMAGES, ReplayStep(mode="prefill", rows=(row,)))


def test_all_patches_of_an_image_see_each_other_and_no_other_image() -> None:
    rows = tuple(BatchRow(request=each, seq_len=2, new_tokens=2) for each in range(2))
    (batch,) = plan(_case(_IMAGES, ReplayStep(mode="prefill", rows=rows)))
    queries = queries_of(batch, _IMAGES)
    assert queries.visible.all() and queries.rows.tolist() == [0, 0, 1, 1]


def test_patches_see_their_window_of_an_image_alone() -> None:
    config = msgspec.structs.replace(_IMAGES, attention_chunk_size=3)
    row = BatchRow(request=0, seq_len=5, new_tokens=5)
    (batch,) = plan(_case(config, ReplayStep(mode="prefill", rows=(row,))))
    seen = queries_of(batch, config).visible.astype(int)
    assert seen.tolist() == [[1, 1, 1, 0, 0]] * 3 + [[0, 0, 0, 1, 1]] * 2


def test_a_third_of_drawn_encoders_see_windows_of_images() -> None:
    can = Capabilities(modes=("prefill",), image_encoders=True, attention_chunks=True)
    drawn = [swarm_config(can, CI, number) for number in range(60)]
    windows = [config.attention_chunk_size for config in drawn if config.attention_chunk_size]
    assert len(drawn) / 4 < len(windows) < len(drawn) / 2
    assert set(windows) == {1, 4, 5, 16}


def test_drawn_images_have_no_past() -> None:
    can = Capabilities(modes=("prefill",), image_encoders=True, max_batch=4)
    drawn: list[Case] = []
    draw(cases(can, CI), 0, 20, drawn.append)
    rows = [row for case in drawn for step in case.steps for row in step.rows]
    assert rows and all(row.seq_len == row.new_tokens for row in rows)
    assert {case.config.image_encoder for case in drawn} == {True}


def test_drawn_slots_hold_every_captured_token() -> None:
    drawn = [swarm_config(_CAN, CI, number) for number in range(60)]
    assert {config.prefill_slots for config in drawn} == {1, 2, 3, 4}
    for config in drawn:
        assert config.capture_tokens[-1] <= config.prefill_slots * config.max_context_len
        assert config.prefill_slots <= config.req_pool_size


def test_images_of_several_lengths_are_drawn_beside_text_alone() -> None:
    lens = {swarm_config(_CAN, CI, number).image_len for number in range(60)}
    assert 0 in lens and len(lens) > 2


def test_a_past_has_as_many_parts_as_its_chunks() -> None:
    latent = msgspec.structs.replace(_FULL, attention="mla", max_context_len=30)
    assert merged_parts(latent) == 8  # of 8 // 2 tokens in a graph
    assert merged_parts(msgspec.structs.replace(latent, max_kv_chunk_capacity=16)) == 15
    assert merged_parts(msgspec.structs.replace(latent, max_context_len=300)) == MOST_PARTS
    assert merged_parts(_FULL) == merged_parts(EngineConfig()) == 0


def test_each_way_to_expand_what_is_cached_is_drawn_for_latent_attention_alone() -> None:
    thresholds, capacities = (8192, 1, 12), (1 << 17, 16, 8)
    can = _CAN.replace(
        attentions=("mha", "mla"),
        prefix_thresholds=thresholds,
        kv_chunk_capacities=capacities,
        images=False,
    )
    drawn = [swarm_config(can, CI, number) for number in range(200)]
    ways = {
        kind: {
            (each.chunked_prefix_cache_threshold, each.max_kv_chunk_capacity)
            for each in drawn
            if each.attention == kind
        }
        for kind in ("mha", "mla")
    }
    assert ways["mha"] == {(8192, 1 << 17)}
    assert {one for one, _ in ways["mla"]} == {*thresholds}
    assert {*capacities} <= {one for _, one in ways["mla"]}
    for each in drawn:
        chunk = each.max_kv_chunk_capacity // each.req_pool_size
        assert each.max_context_len <= 8 * chunk


def test_many_requests_with_long_contexts_leave_other_configs_as_they_are() -> None:
    fields = {name: row.default for name, row in DIMENSIONS.items()}
    fields |= {"req_pool_size": 265, "max_context_len": 1 << 14}
    before = dict(fields)
    prefix_chunks(fields, _CAN, (), Draws(1))
    assert fields == before


def test_what_a_test_pins_stays() -> None:
    fields = {name: row.default for name, row in DIMENSIONS.items()}
    fields |= {"modes": ("prefill",), "prefill_runner": "full", "attention": "mla"}
    can = _CAN.replace(prefix_thresholds=(8192, 1), kv_chunk_capacities=(1 << 17, 16))
    pins = (("chunked_prefix_cache_threshold", (8192,)),)
    for number in range(20):
        drawn = dict(fields)
        prefix_chunks(drawn, can, pins, Draws(number))
        assert drawn["chunked_prefix_cache_threshold"] == 8192
