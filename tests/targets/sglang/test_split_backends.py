"""sglang's servers with one attention backend for prefills and another one for decodes."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, Mode
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case, generated
from tests.targets.sglang.test_two_batches import cut_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.split_mutants:"
FOUND = (
    "decodes_prepare_prefills", "verifies_prepare_decodes", "prepared_eagerly_by_decodes",
    "unsized", "writes_no_kv", "captured_as_a_replay", "verifies_on_the_other", "swapped",
)  # fmt: skip
PAIRS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("aiter", "triton", {}),
    ("fa3", "flashinfer", {}),
    ("fa3", "triton", {"page_size": 16}),
    ("flashinfer", "fa3", {}),
    ("triton", "flashinfer", {}),
    ("trtllm-mha", "flashinfer", {"page_size": 32}),
    ("fa3-mla", "flashinfer", {}),
    ("flashinfer-mla", "triton", {}),
    ("flashmla", "fa3", {"page_size": 64}),
    ("triton-mla", "fa3", {}),
    ("trtllm-mla", "flashinfer", {"page_size": 64}),
)


def split_case(target: str, beside: str, mode: Mode = "decode", **settings: Any) -> Case:
    """Graphs of two sizes and a batch above them, short of the context, on two backends."""
    latent = target.endswith("mla")
    widths = {"attention": "mla", "num_kv_heads": 1, "head_dim": 16, "v_head_dim": 9}
    drafts = {"draft_tokens": 2} if mode == "target_verify" else {}
    return decode_case(
        (5, 17, 40), (9,), (60, 58, 61, 57), (33, 6), (12, 8, 20, 7, 30), mode=mode,
        **{**drafts, **(widths if latent else {}), "backend_beside": beside, **settings},
    )  # fmt: skip


@pytest.mark.parametrize(("target", "beside", "settings"), PAIRS)
@pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
def test_decodes_run_on_the_backend_of_decodes(
    workers: Workers, version: str, target: str, beside: str, settings: dict[str, Any]
) -> None:
    case = split_case(target, beside, **settings)
    assert workers.findings(version, case, f"sglang-{target}") == ()


@pytest.mark.parametrize(("target", "beside", "settings"), PAIRS)
@pytest.mark.parametrize("as_prefill", [False, True], ids=["decode", "prefill"])
def test_verifies_run_on_the_backend_that_the_server_names(
    workers: Workers, target: str, beside: str, settings: dict[str, Any], as_prefill: bool
) -> None:
    settings = {**settings, "verifies_as_prefill": as_prefill}
    case = split_case(target, beside, "target_verify", **settings)
    assert workers.findings("0.5.23", case, f"sglang-{target}-verify") == ()


@pytest.mark.parametrize("name", FOUND)
def test_a_changed_choice_of_the_backend_is_found(workers: Workers, name: str) -> None:
    planted = f"{MUTANTS}{name}"
    target: Any = open_target(planted)
    mode = target.capabilities.modes[0]
    verifies = mode == "target_verify"
    case = split_case("fa3", "triton", mode, verifies_as_prefill=verifies)
    assert workers.findings("0.5.23", case, planted)
    healthy = target.backend.name + ("-verify" if verifies else "")
    assert workers.findings("0.5.23", case, f"sglang-{healthy}") == ()


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-fa3-verify"])
def test_halves_of_a_batch_have_two_backends_each(workers: Workers, target: str) -> None:
    mode = open_target(target).capabilities.modes[0]
    assert workers.findings("0.5.23", cut_case(mode, backend_beside="triton"), target) == ()


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-flashinfer", "sglang-trtllm-mha"])
def test_generated_cases_of_two_backends_are_silent(workers: Workers, target: str) -> None:
    # FlashInfer drops a model's cap (reports/findings/sglang-flashinfer-logit-cap.md).
    drawn = generated(
        target,
        lambda config: config.backend_beside != "none" and not config.logit_cap,
        blocks=8, each=100, enough=12,
    )[:12]  # fmt: skip
    assert len(drawn) == 12
    assert [case for case in drawn if workers.findings("0.5.23", case, target)] == []
