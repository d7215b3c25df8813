"""How sessions call a graph of which its size has several."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.runners.capture import graph_key_of, size_of


@pytest.mark.parametrize(
    ("labels", "key"),
    [
        ({}, 4),
        ({"variant_label": None, "attention_variant": None}, 4),
        ({"variant_label": "lora"}, (4, "lora", None)),
        (
            {"variant_label": None, "attention_variant": "candidate_all"},
            (4, None, "candidate_all"),
        ),
    ],
)
def test_a_graph_is_called_by_its_size_and_what_tells_it_from_others(
    labels: dict[str, Any], key: Any
) -> None:
    assert graph_key_of(Stub(size=4, **labels)) == key
    assert size_of(key) == 4
