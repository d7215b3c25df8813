"""Every declared field has a rule for its live entries; those without one are listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.layout import plan
from fuzzgraph.observation import Field
from fuzzgraph.reference import live_truth
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.fields import declared_fields

TARGETS = Path(__file__).resolve().parents[2] / "fuzzgraph" / "targets"

UNJUDGED = {
    ("triton.py", "num_kv_splits"),
    ("triton.py", "window_num_kv_splits"),
    ("aiter.py", "kv_indptr"),
    ("adapter_segments.py", "lora_weight_indices"),
    ("adapter_segments.py", "lora_ranks"),
    ("adapter_segments.py", "lora_seg_indptr"),
    ("adapter_segments.py", "lora_permutation"),
    ("expert_fields.py", "expert_counts"),
}
"""Each says why where it is declared."""


def _unjudged(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        given = any(keyword.arg == "unjudged" for keyword in node.keywords)
        # A constructor that targets share hands on a name and a reason which its caller gives.
        if given and isinstance(node.args[0], ast.Constant):
            yield path.name, str(node.args[0].value)


def test_the_fields_without_a_rule_for_live_entries_are_known() -> None:
    found = {each for path in sorted(TARGETS.rglob("*.py")) for each in _unjudged(path)}
    assert found == UNJUDGED


@pytest.mark.parametrize("field", declared_fields(EngineConfig(modes=("draft",), spec_steps=2)))
def test_the_built_in_engine_declares_the_dtype_of_every_field(field: Field) -> None:
    assert field.dtype and not field.unjudged


def test_every_truth_is_computed_for_any_batch() -> None:
    """A misspelt name would show in the steps alone that have the field."""

    def check(one: object) -> None:
        for batch in plan(one):  # type: ignore[arg-type]
            for field in declared_fields(one.config):  # type: ignore[attr-defined]
                if "chunk" in field.truth or "item" in field.truth:
                    continue  # of a split plan only
                if "draft_lens" not in field.truth or batch.mode == "draft":
                    live_truth(field, batch, one.config)  # type: ignore[attr-defined]

    draw(cases(BuiltinTarget().capabilities, DEFAULT.at(0)), 1, 50, check)
