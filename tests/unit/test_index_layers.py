"""Which configs have layers that share compressed keys."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase

ROOM: dict[str, Any] = {"attention": "mla", "page_size": 256, "kv_pool_pages": 20}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"candidate_blocks": 8}, "candidate_blocks=8 is of layers with kv_compression 'c1' or"),
        ({"index_layer": "shared", "kv_compression": "c4"}, "index_layer='shared' is of layers"),
        ({"index_layer": "source", "kv_compression": "c1"}, "is of models with candidates"),
        ({"index_layer": "candidates", "kv_compression": "c2"}, "is of models with candidates"),
    ],
)
def test_layers_without_such_keys_and_models_without_candidates_are_refused(
    fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidCase, match=says):
        validate(Case(schema_version=1, config=EngineConfig(**ROOM, **fields), steps=()))


@pytest.mark.parametrize("layer", ["own", "source", "candidates", "shared"])
def test_a_model_with_candidates_has_layers_of_each_kind(layer: Any) -> None:
    config = EngineConfig(kv_compression="c1", candidate_blocks=8, index_layer=layer, **ROOM)
    case = Case(schema_version=1, config=config, steps=(ReplayStep(rows=(BatchRow(request=0),)),))
    assert validate(case).config == config
