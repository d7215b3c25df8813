"""Released sglang with one thing handed over wrongly, and as it is."""

from __future__ import annotations

import pytest

from tests.targets.sglang.released import Workers, decode_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

_MUTANTS = "tests.targets.sglang.handover_mutants"


def handed(workers: Workers, target: str, *, drafts: bool = False) -> set[str]:
    """Names that the oracle of handovers finds wrong: three rows padded to four."""
    if drafts:
        case = decode_case((9, 8, 7), mode="target_verify", capture_bs=(4,))
    else:
        case = decode_case((5, 6, 7), capture_bs=(4,))
    found = workers.findings("0.5.23", case, target)
    return {one.buffer for one in found if one.oracle == "handover"}


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-fa3-verify"])
def test_a_release_as_it_is_hands_over_what_it_should(workers: Workers, target: str) -> None:
    assert handed(workers, target, drafts=target.endswith("verify")) == set()


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        ("lost_metadata", "FlashAttentionBackend.forward_metadata"),
        ("raw_mirror", "FlashAttentionBackend.init_forward_metadata_out_graph.forward_batch"),
        ("stale_mirror", "FlashAttentionBackend.init_forward_metadata_out_graph.forward_batch"),
    ],
)
def test_what_a_runner_hands_over_wrongly_is_named(
    workers: Workers, mutant: str, name: str
) -> None:
    found = handed(workers, f"{_MUTANTS}:{mutant}")
    assert any(each.startswith(name) for each in found)


def test_query_offsets_of_a_verify_are_named(workers: Workers) -> None:
    found = handed(workers, f"{_MUTANTS}:longer_drafts", drafts=True)
    assert any(each.endswith(".cu_seqlens_q") for each in found)
