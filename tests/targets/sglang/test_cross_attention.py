"""Released sglang with a model that has an encoder: a layer of cross attention in decode graphs."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers

_MUTANTS = "tests.targets.sglang.cross_mutants"
_FA3, _FLASHINFER = "sglang-fa3-cross", "sglang-flashinfer-cross"
_NEWEST = "0.5.23"


def _decode(
    *rows: tuple[int, int, int], finish: tuple[int, ...] = (), via: Any = "graph"
) -> ReplayStep:
    """A step of (request, length, tokens of its encoder)."""
    made = tuple(
        BatchRow(request=request, seq_len=length, encoder_len=encoder)
        for request, length, encoder in rows
    )
    return ReplayStep(rows=made, finish=finish, via=via)


def cross_case(*steps: ReplayStep, **settings: Any) -> Case:
    given = {"capture_bs": (1, 2, 4), "max_context_len": 16, "max_encoder_len": 4}
    config = EngineConfig(**{**given, **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


# Rows with encoders of all lengths, one that takes over from one that left, a padded batch behind a
# full one, and requests without an encoder, beside others and alone.
GROWING = (
    _decode((0, 5, 4), (1, 3, 1), (2, 7, 3), (3, 2, 2)),
    _decode((0, 6, 4), (2, 8, 3), (4, 1, 4), finish=(1, 3)),
    _decode((4, 2, 4), (0, 7, 4)),
)
WITHOUT = (
    _decode((0, 5, 2), (1, 3, 0)),
    _decode((1, 4, 0)),
    _decode((0, 6, 2)),
)
EAGER = (_decode((0, 5, 4), (1, 9, 1), via="eager"), _decode((0, 6, 4)))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "version"),
    [(_FA3, "0.5.13"), (_FA3, "0.5.17"), (_FA3, _NEWEST)]
    + [(_FLASHINFER, "0.5.13"), (_FLASHINFER, "0.5.17"), (_FLASHINFER, _NEWEST)],
)
@pytest.mark.parametrize(
    "steps", [GROWING, WITHOUT, EAGER], ids=["growing", "without an encoder", "eager"]
)
def test_a_healthy_engine_is_silent(
    workers: Workers, target: str, version: str, steps: tuple[ReplayStep, ...]
) -> None:
    assert workers.findings(version, cross_case(*steps), target) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_flashinfer_attends_to_long_encoders(workers: Workers) -> None:
    case = cross_case(_decode((0, 5, 40), (1, 16, 1)), max_encoder_len=40)
    assert workers.findings(_NEWEST, case, _FLASHINFER) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "planted", "told"),
    [
        (_FA3, "keeps_encoder_lens", ("contract", "encoder_cache_seqlens")),
        (_FA3, "takes_the_first_rows_length", ("contract", "encoder_cache_seqlens")),
        (_FA3, "keeps_the_encoders_table", ("contract", "encoder_page_table")),
        (_FA3, "keeps_the_encoders_offsets", ("contract", "encoder_cu_seqlens_k")),
        (_FA3, "begins_the_text_at_the_encoder", ("contract", "page_table")),
        (_FA3, "begins_all_texts_at_one_column", ("contract", "page_table")),
        (_FA3, "attends_by_the_texts_length", ("reference", "attention")),
        (_FLASHINFER, "lists_the_encoder_as_text", ("contract", "kv_indices")),
        (_FLASHINFER, "lists_as_many_as_text", ("contract", "encoder_kv_indptr")),
        (_FLASHINFER, "plans_by_the_texts_length", ("contract", "planned_encoder_kv_indptr")),
        (_FLASHINFER, "gives_layers_each_others_wrapper", ("reference", "attention")),
    ],
)
def test_a_changed_line_is_found_out(
    workers: Workers, target: str, planted: str, told: tuple[str, str]
) -> None:
    case = cross_case(*GROWING)
    assert workers.findings(_NEWEST, case, target) == ()
    found = workers.findings(_NEWEST, case, f"{_MUTANTS}:{planted}")
    assert told in {(one.oracle, one.buffer) for one in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("version", "fails"), [("0.5.15", False), ("0.5.16", True)])
def test_from_0_5_16_on_fa3_reads_behind_the_page_map_for_encoders_of_five_tokens(
    workers: Workers, version: str, fails: bool
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-fa3-cross-page-map.md."""
    case = cross_case(_decode((0, 5, 5)), max_encoder_len=5)
    found = workers.findings(version, case, _FA3)
    assert [one.oracle for one in found] == (["survival"] if fails else [])
    within = cross_case(_decode((0, 5, 4)), max_encoder_len=4)
    assert workers.findings(version, within, _FA3) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_fa3_of_0_5_12_takes_the_first_rows_encoder_for_all(workers: Workers) -> None:
    """See reports/findings/sglang-fa3-cross-one-row.md."""
    alike = cross_case(_decode((0, 5, 3)), _decode((1, 6, 3)))
    assert workers.findings("0.5.12", alike, _FA3) == ()
    apart = cross_case(_decode((0, 5, 3), (1, 4, 1)), capture_bs=(2,))
    found = {(one.oracle, one.buffer) for one in workers.findings("0.5.12", apart, _FA3)}
    assert {("contract", "encoder_cache_seqlens"), ("contract", "page_table")} <= found
    assert ("reference", "attention") in found


@pytest.mark.sglang
@pytest.mark.slow
def test_flashinfer_of_0_5_9_plans_cross_attention_by_the_length_of_the_text(
    workers: Workers,
) -> None:
    case = cross_case(_decode((0, 2, 4)), capture_bs=(1,))
    found = {one.buffer for one in workers.findings("0.5.9", case, _FLASHINFER)}
    assert {"planned_encoder_kv_indptr", "attention"} <= found
    assert workers.findings("0.5.10", case, _FLASHINFER) == ()


def test_a_server_without_an_encoder_is_another_targets() -> None:
    for name in (_FA3, _FLASHINFER):
        refused = open_target(name).unsupported(EngineConfig(modes=("decode",)))
        assert refused is not None
        assert "encoder" in refused


def test_pages_of_several_tokens_and_shared_prefixes_are_not_driven() -> None:
    target = open_target(_FA3)
    assert target.capabilities.page_sizes == (1,)
    assert not target.capabilities.prefix_beside_encoder
