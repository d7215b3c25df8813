"""Draft runners of released sglang: condemned where they were wrong, acquitted where fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.layout import plan
from fuzzgraph.ports import why_unserved
from fuzzgraph.strategies import CI
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.forward_batch.draft import live_places, select_index
from fuzzgraph.world import Batch
from tests.targets.sglang.released import Workers

released = [pytest.mark.sglang, pytest.mark.slow]


PAGES: dict[str, Any] = {"kv_pool_pages": 100, "max_context_len": 64}


def draft_case(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Steps of mode draft with rows of these lengths, each step with requests of its own."""
    return _case("draft", batches, {}, settings)


def extend_case(*accepted: tuple[int, ...], **settings: Any) -> Case:
    """Steps of mode draft_extend whose rows accepted so many tokens."""
    return _case("draft_extend", [(9,) * len(row) for row in accepted], dict(enumerate(accepted)),
                 settings)  # fmt: skip


def _case(
    mode: Mode,
    batches: Sequence[tuple[int, ...]],
    accepted: Mapping[int, tuple[int, ...]],
    settings: Mapping[str, Any],
) -> Case:
    steps = tuple(
        ReplayStep(
            mode=mode,
            rows=tuple(
                BatchRow(
                    request=100 * index + row,
                    seq_len=length,
                    new_tokens=accepted[index][row] if accepted else 0,
                )
                for row, length in enumerate(lengths)
            ),
            finish=tuple(100 * (index - 1) + row for row in range(len(batches[index - 1])))
            if index
            else (),
        )
        for index, lengths in enumerate(batches)
    )
    config = EngineConfig(**{"modes": (mode,), "capture_bs": (1, 2, 4), **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


def seen(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    """(oracle, buffer) of each finding."""
    return {(one.oracle, one.buffer) for one in workers.findings(version, case, target)}


def but_slots(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Up to 0.5.13 a draft's backend is handed the slots of live rows alone, in a padded batch."""
    return {
        (oracle, buffer)
        for oracle, buffer in found
        if oracle != "handover" or not buffer.endswith(".out_cache_loc")
    }


COUNTS = (
    "FlashAttentionBackend.init_forward_metadata_out_graph.forward_batch.spec_info"
    ".num_correct_drafts"
)
HANDED = (".req_pool_indices", ".spec_info.num_accept_tokens")


def but_handed_padding(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What padded rows keep of a batch before reaches the backend too; another oracle says that.

    Up to 0.5.13 draft-extend of several layers keeps the counts of padded rows as well.
    """
    return {
        (oracle, buffer)
        for oracle, buffer in found
        if oracle != "handover" or not buffer.endswith(HANDED)
    }


ROOM = {"max_context_len": 32, "kv_pool_pages": 300}
STALE = {("contract", "req_pool_indices"), ("history", "req_pool_indices")}
# In 0.5.13 a graph of draft-extend is captured with -1 tokens for each row.
AT_CAPTURE = {"0.5.12": set(), "0.5.13": {("contract", "cu_seqlens_q")}, "0.5.23": set()}


class TestReleases:
    pytestmark = released

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
    def test_padded_rows_of_draft_extend_are_stale_up_to_0_5_12_only(
        self, workers: Workers, version: str
    ) -> None:
        case = extend_case((1, 3, 2, 3), (2, 1, 3), draft_tokens=3)
        found = seen(workers, version, case, "sglang-eagle-draft-extend") - AT_CAPTURE[version]
        assert but_handed_padding(found) == (STALE if version == "0.5.12" else set())

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_tokens_that_were_not_accepted_leave_the_others_as_they_are(
        self, workers: Workers, version: str
    ) -> None:
        case = extend_case((1, 0, 2, 3), (0,), (2, 1, 3), draft_tokens=3)
        found = seen(workers, version, case, "sglang-eagle-draft-extend")
        assert found == AT_CAPTURE[version]

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("sglang-eagle-draft", set()),
            (
                "tests.targets.sglang.attention_mutants:drafts_on_the_wrong_step",
                {("reference", "attention")},
            ),
        ],
        ids=["as released", "steps swapped"],
    )
    def test_each_step_of_a_draft_sees_the_drafts_before_it(
        self, workers: Workers, target: str, expected: set[tuple[str, str]]
    ) -> None:
        case = draft_case((5, 6), (7, 3), spec_steps=3)
        found = seen(workers, "0.5.23", case, target)
        assert expected <= found and bool(found) == bool(expected)

    @pytest.mark.parametrize(
        ("bug", "oracle", "output"),
        [
            ("no_hidden_states_for_an_extend", "reference", "hidden_states"),
            ("extend_takes_the_next_rows_token", "reference", "next_token_logits"),
            ("logits_of_other_rows", "eager", "next_token_logits"),
            ("no_hidden_states_for_a_draft", "reference", "hidden_states"),
            ("chains_of_other_rows", "reference", "draft_tokens"),
            ("parents_of_a_step_before", "reference", "drafted_parents"),
            ("scores_of_a_step_behind", "reference", "drafted_scores"),
            ("graphs_of_one_row_less", "survival", ""),
            ("graphs_never_captured", "survival", ""),
            ("model_without_a_batch", "survival", ""),
            ("context_of_the_graphs_backend", "survival", ""),
            ("counts_of_a_row_too_many", "handover", COUNTS),
        ],
    )
    def test_what_a_runner_hands_its_model_and_hands_out_is_judged(
        self, workers: Workers, bug: str, oracle: str, output: str
    ) -> None:
        drafts = bug in ("no_hidden_states_for_a_draft", "chains_of_other_rows")
        if output.startswith("drafted"):
            case = draft_case((5, 6), (7, 3), spec_steps=2)
        elif drafts:
            case = draft_case((5, 6), (7, 3))
        else:
            case = extend_case((1, 3), (2, 1, 3), draft_tokens=3)
        found = seen(workers, "0.5.23", case, f"tests.targets.sglang.draft_mutants:{bug}")
        assert (oracle, output) in found

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
    def test_padded_rows_of_frozen_kv_mtp_are_stale_up_to_0_5_12_only(
        self, workers: Workers, version: str
    ) -> None:
        case = draft_case((5, 6, 7, 8), (5, 6, 7))
        found = seen(workers, version, case, "sglang-frozen-kv-mtp")
        assert but_handed_padding(found) == (STALE if version == "0.5.12" else set())

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
    @pytest.mark.parametrize("steps", [1, 3])
    def test_parents_of_drafts_on_the_targets_kv_are_those_of_a_chain(
        self, workers: Workers, version: str, steps: int
    ) -> None:
        case = draft_case((5, 6), (7, 3), spec_steps=steps, capture_bs=(2,))
        assert seen(workers, version, case, "sglang-frozen-kv-mtp") == set()

    @pytest.mark.parametrize(
        ("version", "target", "found"),
        [
            ("0.5.21", "sglang-eagle-draft", False),
            ("0.5.23", "sglang-eagle-draft", False),
            ("0.5.23", "tests.targets.sglang.draft_mutants:window_slots_of_the_first_step", True),
        ],
    )
    def test_drafts_behind_a_window_are_written_to_slots_of_their_own(
        self, workers: Workers, version: str, target: str, found: bool
    ) -> None:
        case = draft_case((5, 6, 9, 4), (7, 3), (12, 8, 9), spec_steps=3, swa_window=3, **PAGES)
        shown = seen(workers, version, case, target)
        expected = {("reference", "swa_attention")} if found else set()
        assert expected <= shown and bool(shown) is found

    def test_a_release_whose_drafts_have_no_slots_of_a_window_skips_the_case(
        self, workers: Workers
    ) -> None:
        case = draft_case((5, 6), spec_steps=3, swa_window=3, **PAGES)
        skipped = workers.skipped("0.5.20", case, "sglang-eagle-draft")
        assert "0.5.20 hands each step of a draft the window's slots of all steps" in skipped

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
    def test_padded_rows_of_multi_layer_draft_extend_are_stale_to_this_day(
        self, workers: Workers, version: str
    ) -> None:
        case = extend_case((1, 3, 2, 3), (2, 1, 3), draft_tokens=3)
        found = seen(workers, version, case, "sglang-multi-layer-draft-extend")
        assert but_handed_padding(found) - AT_CAPTURE[version] == STALE

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
    def test_full_batches_of_multi_layer_draft_extend_are_clean(
        self, workers: Workers, version: str
    ) -> None:
        case = extend_case((4, 3), (2, 1, 3, 4), draft_tokens=4)
        assert seen(workers, version, case, "sglang-multi-layer-draft-extend") == set()

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
    def test_lengths_of_padded_drafts_are_not_in_their_sum_up_to_0_5_13(
        self, workers: Workers, version: str
    ) -> None:
        found = but_slots(seen(workers, version, draft_case((5, 6, 7)), "sglang-eagle-draft"))
        assert found == (set() if version == "0.5.23" else {("contract", "seq_lens_sum")})

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
    def test_branches_of_several_steps_write_their_own_slots(
        self, workers: Workers, version: str
    ) -> None:
        case = draft_case((5, 6), (7, 3), spec_topk=2, spec_steps=3)
        assert seen(workers, version, case, "sglang-eagle-draft") == set()

    def test_indices_of_several_branches_outgrow_flashinfers_buffer_up_to_0_5_12(
        self, workers: Workers
    ) -> None:
        case = draft_case((4,), capture_bs=(1,), max_context_len=4, spec_topk=2, spec_steps=2)
        found = seen(workers, "0.5.12", case, "sglang-flashinfer-draft")
        assert ("footprint", "backend.cuda_graph_kv_indices") in found

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_each_branch_reads_its_past_and_its_own_drafts(
        self, workers: Workers, version: str
    ) -> None:
        case = draft_case((20, 20, 9, 20), (5, 6, 7), spec_topk=3, spec_steps=3, **ROOM)
        assert but_slots(seen(workers, version, case, "sglang-flashinfer-draft")) == set()


def extend_batch_of(*accepted: int) -> Batch:
    (batch,) = plan(extend_case(accepted, draft_tokens=3))
    return batch


def test_accepted_tokens_lie_at_the_front_of_their_rows() -> None:
    batch = extend_batch_of(2, 0, 3)
    assert np.array_equal(live_places(batch, 3), [0, 1, 6, 7, 8])


def test_the_last_accepted_token_of_each_row_is_selected() -> None:
    assert select_index(extend_batch_of(2, 0, 3), 3).tolist() == [1, 3, 8]


@pytest.mark.parametrize(
    "target",
    ["eagle-draft", "eagle-draft-extend", "frozen-kv-mtp", "multi-layer-draft-extend"],
)
def test_decode_graphs_are_not_driven(target: str) -> None:
    assert "captures" in (open_target(f"sglang-{target}").unsupported(EngineConfig()) or "")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ""),
        (
            {"draft_tokens": 3},
            "server_args.py changes draft_tokens=3 to 2 with spec_topk=1 and spec_steps=1",
        ),
        ({"draft_tokens": 3, "spec_steps": 2}, ""),
        ({"draft_tokens": 3, "spec_topk": 2}, ""),
    ],
)
def test_a_server_drafts_a_token_less_than_it_verifies_unless_it_has_branches(
    settings: dict[str, Any], said: str
) -> None:
    config = EngineConfig(modes=("draft",), **settings)
    assert why_unserved(open_target("sglang-eagle-draft"), config) == said


def test_drafts_behind_a_window_are_drawn_with_one_branch_alone() -> None:
    capabilities = open_target("sglang-eagle-draft").capabilities
    configs = [swarm_config(capabilities, CI, number) for number in range(100)]
    assert {config.spec_topk for config in configs if config.swa_window} == {1}


def test_several_branches_behind_a_window_are_refused() -> None:
    config = EngineConfig(modes=("draft",), swa_window=3, spec_topk=2)
    said = open_target("sglang-eagle-draft").unsupported(config)
    assert said == "swa_window=3 with several branches, which do not attend"
