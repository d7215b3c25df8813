"""EAGLE's draft-extend without a graph on one of several data-parallel ranks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, rank_sizes, validate
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_data_ranks import step
from tests.targets.sglang.test_draft_extend import _ON

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

_NEWEST = "0.5.23"
MUTANTS = "tests.targets.sglang.extend_rank_mutants:"
_OTHER: dict[str, dict[str, Any]] = {"eagle": {}, **_ON}


def eagerly(rows: int, length: int, *others: int) -> ReplayStep:
    """Rows that have accepted two tokens each, without a graph, beside other ranks."""
    return msgspec.structs.replace(step("draft_extend", rows, 2, length, *others), via="eager")


def beside_ranks(backend: str = "eagle", **settings: Any) -> Case:
    """Steps beside ranks with more rows, with one row in all, with as many, and without a row of
    its own; then one that is larger than any graph, and one that replays a graph."""
    config = EngineConfig(
        modes=("draft_extend",), capture_bs=(1, 2), max_context_len=64, kv_pool_pages=80,
        draft_tokens=3, dp_size=4, dp_rank=2, **{**_OTHER[backend], **settings},
    )  # fmt: skip
    steps = (
        eagerly(1, 5, 4, 3, 4),
        eagerly(4, 8, 0, 1, 0),
        eagerly(2, 12, 3, 3, 3),
        eagerly(0, 0, 3, 3, 3),
        step("draft_extend", 2, 2, 17, 1, 3, 0),
        step("draft_extend", 1, 2, 20, 2, 0, 0),
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


def target(backend: str) -> str:
    return f"sglang-{backend}-draft-extend"


@pytest.mark.parametrize(
    ("version", "backend"),
    [
        *((_NEWEST, backend) for backend in ("eagle", "fa3-mla", "nsa", "triton", "trtllm-mla")),
        *(("0.5.18", backend) for backend in ("eagle", "fa3-mla", "nsa", "triton", "trtllm-mla")),
        *(("0.5.13", backend) for backend in ("trtllm-mha", "trtllm-mla")),
    ],
)
def test_a_batch_is_padded_for_the_other_ranks_behind_its_metadata(
    workers: Workers, version: str, backend: str
) -> None:
    assert workers.findings(version, beside_ranks(backend), target(backend)) == ()


FOUND = {
    "new_tokens_of_no_row": ("contract", "extend_seq_lens"),
    "new_tokens_of_one_less": ("contract", "extend_seq_lens"),
    "past_of_a_token": ("contract", "extend_prefix_lens"),
    "hosts_new_tokens_of_no_row": ("contract", "extend_seq_lens_cpu"),
    "hosts_new_tokens_of_a_row_less": ("contract", "extend_seq_lens_cpu"),
    "hosts_past_dropped": ("contract", "extend_prefix_lens_cpu"),
    "writes_to_a_slot_of_nobody": ("footprint", "kv_pool.k_buffer[0]"),
    "lengths_without_padding": ("contract", "seq_lens"),
    "rows_that_pad_come_back": ("survival", ""),
    "comes_back_by_rows": ("survival", ""),
    "logits_of_padding": ("reference", "next_token_logits"),
    "rows_for_each_token": ("contract", "extend_seq_lens"),
    "tokens_of_the_first_rank": ("survival", ""),
}
"""Planted bug -> the finding that names it."""


@pytest.mark.parametrize("name", FOUND)
def test_a_changed_line_of_the_padding_is_found(workers: Workers, name: str) -> None:
    found = workers.findings(_NEWEST, beside_ranks(), f"{MUTANTS}{name}")
    assert FOUND[name] in {(each.oracle, each.buffer) for each in found}


def test_a_plan_whose_list_grows_with_the_batch_fails(workers: Workers) -> None:
    (found,) = workers.findings(_NEWEST, beside_ranks("nsa"), f"{MUTANTS}plan_grows")
    assert "context_lens must be [12, 1]; got [3, 1]" in found.message


BROKEN = {
    "flashinfer": ("survival", "q must have the 3 queries that were planned; got 12"),
    "flashmla": ("survival", "cache_seqlens must be [4]; got [1]"),
    "trtllm-mha": ("noninterference", "outside seq_lens (1 element)"),
    "aiter": ("noninterference", "outside kv_indptr_ptr (2 elements)"),
}
"""Backend -> what it does with rows that are padded behind its metadata."""


@pytest.mark.parametrize("backend", BROKEN)
def test_a_backend_that_takes_its_rows_from_the_padded_batch_is_found(
    workers: Workers, backend: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-extend-padded-for-ranks.md."""
    pages = {"page_map": "page_table", "page_size": 32} if backend == "aiter" else {}
    found = workers.findings(_NEWEST, beside_ranks(backend, **pages), target(backend))
    oracle, said = BROKEN[backend]
    assert any(each.oracle == oracle and said in each.message for each in found)


@pytest.mark.parametrize("backend", ["eagle", "triton", "trtllm-mha"])
def test_slots_of_a_window_are_too_few_for_a_padded_batch(workers: Workers, backend: str) -> None:
    """Open in 0.5.23; see reports/findings/sglang-extend-padded-for-ranks.md."""
    found = workers.findings(_NEWEST, beside_ranks(backend, swa_window=3), target(backend))
    assert "indices must be [12]; got [3]" in " ".join(each.message for each in found)


@pytest.mark.parametrize("version", ["0.5.19", "0.5.22"])
def test_a_plan_grew_with_its_batch_up_to_0_5_22(workers: Workers, version: str) -> None:
    (found,) = workers.findings(version, beside_ranks("nsa"), target("nsa"))
    assert "context_lens must be [12, 1]; got [3, 1]" in found.message


def test_an_idle_rank_failed_on_triton_in_0_5_13(workers: Workers) -> None:
    (found,) = workers.findings("0.5.13", beside_ranks("triton"), target("triton"))
    assert "'EagleDraftExtendInput' object has no attribute 'kv_indptr'" in found.message


def test_generated_cases_are_silent(workers: Workers) -> None:
    drawn = generated(target("fa3-mla"), lambda config: config.dp_size > 1, blocks=2, each=100)
    assert sum(map(_eager_steps, drawn)) > 60
    accused = [case for case in drawn if workers.findings(_NEWEST, case, target("fa3-mla"))]
    assert accused == []


def _eager_steps(case: Case) -> int:
    """Those with rows on some rank that run without a graph, or that no graph is large enough
    for."""
    most = [max(rank_sizes(case.config, each)) for each in case.steps]
    largest = case.config.capture_bs[-1]
    return sum(
        rows > 0 and (each.via == "eager" or rows > largest)
        for rows, each in zip(most, case.steps, strict=True)
    )
