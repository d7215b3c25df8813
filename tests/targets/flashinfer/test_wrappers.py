"""FlashInfer's own wrappers with CUDA graphs: healthy releases are silent, one wrong line shows."""

from __future__ import annotations

import pytest

from fuzzgraph.case import Case
from fuzzgraph.targets.entry import TargetEntry
from fuzzgraph.targets.flashinfer import TARGETS
from tests.targets.sglang.released import Workers, decode_case

pytestmark = pytest.mark.flashinfer

_RELEASES = ("0.6.18", "0.7.2", "0.7.4")


_ILL = {
    "flashinfer-decode-trtllm-gen": ("contract", "block_tables"),
    "flashinfer-prefill-mask-buffers": ("reference", "attention"),
    "flashinfer-prefill-packed-mask": ("noninterference", "buffers.mask"),
}
"""Targets that show a bug of these releases (corpus/known_bugs) -> what is found."""
_WERE_ILL = {
    "flashinfer-decode-verify": ("reference", "attention"),
    "flashinfer-prefill-max-len": ("survival", ""),
}
"""The same of an older one."""
_OTHER_KINDS = {
    "workspace_anew": "mla",
    **dict.fromkeys(
        ("mask_offsets_not_copied", "plan_of_fewer_queries", "lengths_of_queries",
         "offsets_of_the_device", "arguments_of_the_other_planner", "plan_without_a_graph",
         "module_of_other_dims", "mask_offsets_swapped"), "prefill",
    ),
}  # fmt: skip
"""Mutants of wrappers other than a decode's."""
_WITH_KEYS = ("flashinfer-decode-verify", "flashinfer-mla-verify")
"""Targets whose padded rows have keys."""


def _case(target: str, **settings: object) -> Case:
    """Full, padded and above the captured sizes, with rows that end within and at a page."""
    latent, several = "mla" in target, "verify" in target or "prefill" in target
    attention = {"attention": "mla", "head_dim": 6, "v_head_dim": 4} if latent else {}
    given = {"dtype": "bfloat16", "page_size": 2, "max_context_len": 12, **attention, **settings}
    return decode_case((3, 4, 6), (5,), (2, 4, 8, 3, 6), (2, 3, 5, 7),
                       mode="target_verify" if several else "decode", **given)  # fmt: skip


@pytest.mark.parametrize("release", _RELEASES)
@pytest.mark.parametrize("fill", [0, 1])
@pytest.mark.parametrize(
    "row", [row for row in TARGETS if row.name not in _ILL], ids=lambda row: row.name
)
def test_a_wrapper_attends_right_and_plans_what_its_graph_reads(
    flashinfers: Workers, row: TargetEntry, fill: int, release: str
) -> None:
    case = _case(row.name, seq_len_fill_value=fill)
    if fill == 0 and row.name in _WITH_KEYS:
        why = flashinfers.skipped(release, case, row.name)
        assert why == "seq_len_fill_value=0 is not driven, only 1"
        return
    assert flashinfers.findings(release, case, row.name) == ()


@pytest.mark.parametrize("release", _RELEASES)
@pytest.mark.parametrize("target", _ILL)
def test_a_bug_of_these_releases_is_found(flashinfers: Workers, target: str, release: str) -> None:
    paged = {"page_size": 16, "max_context_len": 40}
    settings = {"trtllm-gen": paged, "packed-mask": {"spec_topk": 2}}
    case = _case(target, **next((each for of, each in settings.items() if of in target), {}))
    found = flashinfers.findings(release, case, target)
    assert _ILL[target] in {(each.oracle, each.buffer) for each in found}


@pytest.mark.parametrize("target", _WERE_ILL)
def test_a_bug_of_an_older_release_is_found(flashinfers: Workers, target: str) -> None:
    found = flashinfers.findings("0.6.3", _case(target), target)
    assert _WERE_ILL[target] in {(each.oracle, each.buffer) for each in found}


@pytest.mark.parametrize("release", _RELEASES)
def test_nothing_is_found_where_a_plan_keeps_the_page_table_and_the_counters(
    flashinfers: Workers, release: str
) -> None:
    case = _case("decode", page_size=16, max_context_len=40)
    mended = "tests.targets.flashinfer.mutants:trtllm_gen_mended"
    assert flashinfers.findings(release, case, mended) == ()


@pytest.mark.parametrize("release", _RELEASES)
def test_a_prefill_follows_the_mask_of_a_tree(flashinfers: Workers, release: str) -> None:
    case = _case("prefill", spec_topk=2, spec_steps=1)
    assert flashinfers.findings(release, case, "flashinfer-prefill") == ()


@pytest.mark.parametrize("release", _RELEASES)
def test_fp8_keys_and_values_are_scaled(flashinfers: Workers, release: str) -> None:
    case = _case("decode", kv_dtype="float8_e4m3fn")
    assert flashinfers.findings(release, case, "flashinfer-decode") == ()


@pytest.mark.parametrize(
    ("mutant", "settings", "oracle", "buffer"),
    [
        ("last_page_not_copied", {}, "contract", "kv_last_page_len"),
        ("offsets_rebound", {}, "contract", "kv_indptr"),
        ("offsets_rebound", {}, "handover", "Wrapper.self._paged_kv_indptr_buf"),
        ("heads_swapped", {"num_q_heads": 4, "num_kv_heads": 2}, "contract", "num_kv_heads"),
        ("key_scale_left_out", {"kv_dtype": "float8_e4m3fn"}, "reference", "attention"),
        ("mask_offsets_not_copied", {"spec_topk": 2}, "reference", "attention"),
        ("plan_of_fewer_queries", {"seq_len_fill_value": 0}, "contract", "total_num_rows"),
        ("workspace_anew", {}, "contract", "int_workspace"),
        ("lengths_of_queries", {}, "reference", "attention"),
        ("offsets_of_the_device", {}, "survival", ""),
        ("arguments_of_the_other_planner", {}, "survival", ""),
        ("plan_without_a_graph", {}, "contract", "enable_cuda_graph"),
        ("module_of_other_dims", {}, "survival", ""),
        ("mask_offsets_swapped", {"spec_topk": 2}, "survival", ""),
    ],
)
def test_one_wrong_line_is_found_and_named(
    flashinfers: Workers, mutant: str, settings: dict[str, object], oracle: str, buffer: str
) -> None:
    case = _case(_OTHER_KINDS.get(mutant, "decode"), **settings)
    found = flashinfers.findings("0.7.2", case, f"tests.targets.flashinfer.mutants:{mutant}")
    assert (oracle, buffer) in {(each.oracle, each.buffer) for each in found}
