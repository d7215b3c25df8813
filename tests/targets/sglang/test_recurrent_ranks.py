"""Decodes and verifies of models with recurrent layers beside other ranks on released sglang.

Without a graph the engine pads a batch for the ranks: with rows, which it runs like live ones, and
with tokens that are no whole rows, which a verify of such layers takes for parts of rows
(reports/findings/sglang-recurrent-verify-tokens.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MASK = ("reads", "mask_ptr")
"""Rows that pad a verify without a graph have no mask (sglang-verify-padded-for-ranks.md)."""

LATENT = {"attention": "mla", "num_kv_heads": 1, "v_head_dim": 2}


def beside(mode: Mode, rows: int, others: int, **settings: Any) -> Case:
    """Two steps of so many rows, without a graph, beside a rank that has others."""
    new = settings.get("draft_tokens", 1)
    steps = tuple(
        ReplayStep(
            mode=mode,
            rows=tuple(
                BatchRow(request=row, seq_len=5 + row + at * new, new_tokens=new)
                for row in range(rows)
            ),
            other_ranks=(others,),
            via="eager",
        )
        for at in range(2)
    )
    config = EngineConfig(**{
        "modes": (mode,), "capture_bs": (4,), "max_context_len": 32, "dp_size": 2,
        "num_q_heads": 4, "num_kv_heads": 4, "recurrent_state": True, "kv_pool_pages": 200,
        **settings,
    })  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


def verified(rows: int, drafts: int, **settings: Any) -> Case:
    """Verifies of a model without recurrent layers, on four ranks that share their tokens."""
    return beside(
        "target_verify",
        rows,
        rows,
        attn_tp_size=4,
        draft_tokens=drafts,
        spec_steps=drafts - 1,
        recurrent_state=False,
        **settings,
    )


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("target", "version"),
    [("gdn", "0.5.13"), ("gdn", "0.5.19"), ("gdn", NEWEST), ("kda", "0.5.21"), ("kda", NEWEST)],
)
def test_rows_that_other_ranks_ask_for_harm_no_state(
    workers: Workers, target: str, version: str, ranks: int
) -> None:
    case = beside("decode", 2, 3, attn_tp_size=ranks)
    assert found(workers, version, case, f"sglang-{target}") == set()


@pytest.mark.parametrize("version", ["0.5.13", NEWEST])
@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("trtllm-mha", {"page_size": 16}),
        ("trtllm-mla", {"page_size": 64, **LATENT}),
        ("flashmla", {"page_size": 64, **LATENT}),
    ],
)
def test_drafts_that_the_ranks_cannot_share_shift_queries_of_live_rows(
    workers: Workers, version: str, target: str, settings: dict[str, Any]
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-width.md."""
    seen = found(workers, version, verified(2, 3, **settings), f"sglang-{target}-verify")
    assert ("computes", "attention") in seen


@pytest.mark.parametrize("target", ["fa3", "triton"])
def test_backends_that_go_by_offsets_leave_tokens_that_the_ranks_cannot_share_unwritten(
    workers: Workers, target: str
) -> None:
    """Live rows are right; see reports/findings/sglang-verify-tokens-unwritten.md."""
    (finding, *others) = workers.findings(NEWEST, verified(2, 3), f"sglang-{target}-verify")
    assert (finding.oracle, finding.buffer, others) == ("noninterference", "attention", [])
    assert finding.detail["blamed"] == "fresh memory of the step"
    assert finding.detail["rows"] == "padded"


@pytest.mark.parametrize("target", ["fa3", "triton"])
def test_backends_that_go_by_offsets_write_each_token_that_the_ranks_share(
    workers: Workers, target: str
) -> None:
    assert found(workers, NEWEST, verified(3, 4), f"sglang-{target}-verify") == set()


@pytest.mark.parametrize("target", ["gdn", "kda"])
def test_drafts_that_the_ranks_can_share_are_verified(workers: Workers, target: str) -> None:
    case = beside("target_verify", 2, 3, attn_tp_size=2, draft_tokens=2, spec_steps=1)
    assert found(workers, NEWEST, case, f"sglang-{target}-verify") == {MASK}


@pytest.mark.parametrize("version", ["0.5.13", "0.5.17", NEWEST])
def test_drafts_that_the_ranks_cannot_share_are_no_rows_of_a_gated_delta_net(
    workers: Workers, version: str
) -> None:
    """The same cause: ten tokens are no three rows of three."""
    case = beside("target_verify", 3, 3, attn_tp_size=2, draft_tokens=3, spec_steps=2)
    findings = workers.findings(version, case, "sglang-gdn-verify")
    assert any("shape '[3, 3, -1]' is invalid" in one.message for one in findings)
    even = beside("target_verify", 2, 2, attn_tp_size=2, draft_tokens=3, spec_steps=2)
    assert found(workers, version, even, "sglang-gdn-verify") == set()


@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_drafts_that_the_ranks_cannot_share_write_states_of_others(
    workers: Workers, version: str
) -> None:
    """Open in 0.5.23; sglang issue 37585 tells of KDA, which fails."""
    case = beside("target_verify", 2, 2, attn_tp_size=4, draft_tokens=3, spec_steps=2)
    seen = {clause for clause, _ in found(workers, version, case, "sglang-gdn-verify")}
    assert {"writes", "computes"} <= seen
    seen = {clause for clause, _ in found(workers, version, case, "sglang-kda-verify")}
    assert "survives" in seen
