"""Metadata against the logical batch alone: each slot and page is there, once, and in its place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.accesses import Misuse
from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.errors import UsageError
from fuzzgraph.layout import plan
from fuzzgraph.observation import Axis, Field, Observation, PaddingRule, Selects, StepRecord
from fuzzgraph.oracles.contract import Contract

_FREE = PaddingRule("free")


def _step(length: int, page_size: int = 2, **config: object) -> StepRecord:
    """A decode of one request on a graph of one row."""
    case = Case(
        schema_version=1,
        config=EngineConfig(capture_bs=(1,), page_size=page_size, **config),  # type: ignore[arg-type]
        steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=length),)),),
    )
    return StepRecord(0, "engine", case.config, plan(case)[0], ())


def _messages(step: StepRecord, **metadata: torch.Tensor) -> list[str]:
    kinds: dict[str, tuple[Axis, Selects]] = {
        "kv_indptr": ("indptr", "offset"),
        "kv_indices": ("indices", "slot"),
        "page_table": ("page_table", "page"),
    }
    step.fields = tuple(
        Field(name, *kinds[name], _FREE, unjudged="by this test") for name in metadata
    )
    seen = Observation(1, 1, 1, 1)
    seen.metadata = metadata
    step.runs["replay"] = seen
    return [finding.message for finding in Contract().judge(step)]


@pytest.mark.parametrize(("shown", "said"), [(1, []), (0, ["is_new[0] is 0, the batch says 1"])])
def test_live_rows_hold_what_the_target_told_the_engine(shown: int, said: list[str]) -> None:
    step = _step(3)
    step.fields = (Field("is_new", "requests", "nothing", _FREE, repeats="told"),)
    seen = Observation(1, 1, 1, 1, metadata={"is_new": torch.tensor([shown])})
    seen.told = {"is_new": [1]}
    step.runs["replay"] = seen
    messages = [finding.message for finding in Contract().judge(step)]
    assert [each.partition(": ")[2] for each in messages] == said


def _slots(step: StepRecord) -> list[int]:
    return [int(slot) for slot in step.batch.kv_slots.row(0)]


def _pages(step: StepRecord) -> list[int]:
    return [int(page) for page in step.batch.pages.row(0)]


def _indices(step: StepRecord, slots: list[int]) -> list[str]:
    return _messages(
        step,
        kv_indptr=torch.tensor([0, len(slots)], dtype=torch.int32),
        kv_indices=torch.tensor(slots, dtype=torch.int32),
    )


def _table(step: StepRecord, pages: list[int]) -> list[str]:
    return _messages(step, page_table=torch.tensor([pages], dtype=torch.int32))


def test_the_slots_of_a_row_may_come_in_any_order() -> None:
    step = _step(5)
    assert _indices(step, _slots(step)) == []
    assert _indices(step, _slots(step)[::-1]) == []


def test_a_slot_that_a_decode_leaves_out_is_named() -> None:
    step = _step(5)
    first, *rest = _slots(step)
    (said,) = _indices(step, rest)
    assert f"kv_indices of row 0 lacks slot {first}, 1 of its 5 tokens" in said


def test_a_row_without_any_slots_is_found() -> None:
    (said,) = _indices(_step(5), [])
    assert "5 of its 5 tokens" in said


def test_a_slot_that_counts_twice_is_named() -> None:
    step = _step(5)
    (said,) = _indices(step, [*_slots(step), _slots(step)[1]])
    assert f"kv_indices of row 0 holds slot {_slots(step)[1]} 2 times" in said


def test_a_window_leaves_slots_out() -> None:
    step = _step(5, sliding_window=2)
    assert _indices(step, _slots(step)[-2:]) == []


def test_offsets_for_no_row_at_all_are_found() -> None:
    (said,) = _messages(_step(5), kv_indptr=torch.zeros(1, dtype=torch.int32))
    assert "kv_indptr must hold padded_bs + 1 = 2 offsets; got 1" in said


def test_a_table_names_the_pages_of_a_row_in_order() -> None:
    step = _step(5)
    assert _table(step, _pages(step)) == []


@pytest.mark.parametrize("order", [(0, 0, 0), (2, 1, 0), (0, 2, 2)])
def test_pages_out_of_place_are_found(order: tuple[int, ...]) -> None:
    step = _step(5)
    pages = np.array(_pages(step))[list(order)].tolist()
    (said,) = _table(step, pages)
    at = next(i for i, place in enumerate(order) if place != i)
    assert f"page_table[0, {at}] is page {pages[at]}, the row's page there is" in said


def _fields(step: StepRecord, *fields: Field, padded: int = 1, **metadata: object) -> list[str]:
    step.fields = fields
    tensors = {name: torch.as_tensor(value) for name, value in metadata.items()}
    step.runs["replay"] = Observation(1, padded, 1, padded, metadata=tensors)
    return [finding.message for finding in Contract().judge(step)]


_LENGTH = Field("kv_last_page_len", "requests", "length", PaddingRule("fill", 1))


@pytest.mark.parametrize(("length", "last"), [(1, 1), (3, 3), (4, 4), (5, 1), (8, 4)])
def test_the_last_page_holds_what_its_row_leaves_over(length: int, last: int) -> None:
    step = _step(length, page_size=4)
    assert _fields(step, _LENGTH, kv_last_page_len=[last]) == []
    (said,) = _fields(step, _LENGTH, kv_last_page_len=[0])
    assert f"kv_last_page_len[0] is 0, the batch says {last}" in said


def test_a_field_has_an_entry_for_each_padded_row_and_no_more() -> None:
    step = _step(3)
    lengths = Field("seq_lens", "requests", "length", PaddingRule("fill", 1))
    assert _fields(step, lengths, padded=2, seq_lens=[3, 1]) == []
    (said,) = _fields(step, lengths, padded=2, seq_lens=[3, 1, 1])
    assert "seq_lens has 3 entries, the graph has 2" in said


def test_a_field_has_the_dtype_that_it_declares() -> None:
    step = _step(3)
    lengths = Field("seq_lens", "requests", "length", _FREE, dtype="int32")
    assert _fields(step, lengths, seq_lens=torch.tensor([3], dtype=torch.int32)) == []
    (said,) = _fields(step, lengths, seq_lens=torch.tensor([3]))
    assert "seq_lens must be int32; got int64" in said


def test_what_selects_memory_is_never_a_float() -> None:
    step = _step(3)
    lengths = Field("seq_lens", "requests", "length", _FREE)
    assert _fields(step, lengths, seq_lens=[3]) == []
    (said,) = _fields(step, lengths, seq_lens=[3.0])
    assert "seq_lens selects a length and cannot be float32" in said


def test_an_optional_input_that_is_absent_holds_what_padded_rows_hold() -> None:
    step = _step(3)
    mrope = Field("mrope", "tokens", "nothing", PaddingRule("fill", 32))
    assert _fields(step, mrope, mrope=[32]) == []
    (said,) = _fields(step, mrope, mrope=[7])
    assert "mrope[0] is 7, the batch says 32" in said


def test_a_field_that_says_nothing_of_its_live_entries_is_refused() -> None:
    with pytest.raises(UsageError, match="field 'splits' declares nothing.*unjudged="):
        Field("splits", "requests", "nothing", _FREE)
    assert Field("splits", "requests", "nothing", _FREE, unjudged="any number will do").truth == ""


def test_a_reason_takes_the_place_of_what_the_name_promises() -> None:
    lengths = Field("seq_lens", "requests", "length", _FREE, unjudged="without the drafts")
    assert _fields(_step(3), lengths, seq_lens=[1]) == []


def _captured(**values: list[int]) -> list[str]:
    step = _step(3, attn_tp_size=2, max_encoder_len=4)
    step.fields = (
        Field("num_token_non_padded", "scalar", "length", _FREE),
        Field("encoder_lens", "requests", "length", _FREE),
        Field("seq_lens", "requests", "length", PaddingRule("fill", 1)),
    )
    step.runs["replay"] = Observation(1, 4, 1, 4)
    step.at_capture = {name: torch.tensor(value) for name, value in values.items()}
    return [finding.message for finding in Contract().judge(step)]


def test_a_capture_sees_padded_rows_whose_tokens_and_encoders_count_as_live() -> None:
    right = {"num_token_non_padded": [2], "encoder_lens": [4] * 4, "seq_lens": [1] * 4}
    assert _captured(**right) == []


@pytest.mark.parametrize("name", ["num_token_non_padded", "encoder_lens", "seq_lens"])
def test_a_value_at_capture_is_judged_by_the_batch_of_the_capture(name: str) -> None:
    (said,) = _captured(**{name: [3]})
    assert f"{name}[0]: got 3" in said and "at capture" in said


def test_values_at_capture_that_are_owed_are_handed_over() -> None:
    step = _step(3)
    step.runs["replay"] = Observation(1, 1, 1, 1)
    step.owed_at_capture = ("num_token_non_padded",)
    (found,) = Contract().judge(step)
    assert (found.stage, found.symptom, found.buffer) == (
        "capture", "missing", "num_token_non_padded"
    )  # fmt: skip
    step.at_capture = {"num_token_non_padded": torch.tensor([1])}
    assert list(Contract().judge(step)) == []


def test_what_a_kernel_refuses_in_the_eager_run_is_told_once_with_its_stage() -> None:
    step = _step(3)
    step.runs["replay"] = Observation(1, 1, 1, 1)
    step.eager_misuses = [Misuse("attend", "lens", "lens must be counts", "-1", "its page")]
    assert [found.stage for found in Contract().judge(step)] == ["eager"]
    step.misuses = list(step.eager_misuses)
    assert [found.stage for found in Contract().judge(step)] == ["replay"]


def _padded_table(rule: PaddingRule, padded: list[int]) -> list[str]:
    """What is said of a padded row that holds these pages, beside a live one."""
    step = _step(2)
    step.fields = (Field("page_table", "page_table", "page", rule),)
    step.runs["replay"] = Observation(
        1, 2, 1, 2, metadata={"page_table": torch.tensor([[*_pages(step), 9], padded])}
    )
    return [finding.message for finding in Contract().judge(step)]


def test_a_padded_row_of_a_page_table_holds_what_the_engine_promises() -> None:
    assert _padded_table(PaddingRule("reserved"), [0, 5]) == []
    assert _padded_table(PaddingRule("skip", -1), [-1, -1]) == []
    assert _padded_table(PaddingRule("free"), [7, 7]) == []
    (said,) = _padded_table(PaddingRule("reserved"), [3, 0])
    assert "page_table of padded row 1 holds page 3, which is not its own" in said
    (said,) = _padded_table(PaddingRule("skip", -1), [-1, 4])
    assert "page_table of padded row 1 holds page 4, not -1" in said


def _lengths(step: StepRecord, field: Field, values: list[int], dummies: int = 0) -> list[str]:
    step.fields = (field,)
    seen = Observation(1, len(values), 1, len(values), dummy_rows=dummies)
    seen.metadata = {"seq_lens": torch.tensor(values)}
    step.runs["replay"] = seen
    return [finding.message for finding in Contract().judge(step)]


def test_dummy_rows_follow_a_rule_of_their_own() -> None:
    field = Field(
        "seq_lens", "requests", "length", PaddingRule("fill", 0), dummy=PaddingRule("fill", 1)
    )
    assert _lengths(_step(2), field, [2, 1, 0], dummies=1) == []
    (said,) = _lengths(_step(2), field, [2, 0, 0], dummies=1)
    assert "seq_lens[1] of a padded row is 0, must be the fill value 1" in said
    (said,) = _lengths(_step(2), field, [2, 1, 1], dummies=1)
    assert "seq_lens[2] of a padded row is 1, must be the fill value 0" in said


def test_a_mode_may_have_a_rule_of_its_own() -> None:
    rules: tuple[tuple[Mode, PaddingRule], ...] = (("decode", PaddingRule("fill", 7)),)
    field = Field("seq_lens", "requests", "length", PaddingRule("fill", 0), in_modes=rules)
    assert _lengths(_step(2), field, [2, 7]) == []
    assert _lengths(_step(2), field, [2, 0])


def _offsets(offsets: list[int], rule: PaddingRule, dummies: int = 0) -> list[str]:
    """Of one live row with a new token, the rest padded."""
    step, rows = _step(2), len(offsets) - 1
    step.fields = (
        Field("query_start_loc", "indptr", "offset", rule, repeats="new_lens",
              dummy=PaddingRule("fill", 1)),
    )  # fmt: skip
    seen = Observation(1, rows, 1, rows, dummy_rows=dummies)
    seen.metadata = {"query_start_loc": torch.tensor(offsets, dtype=torch.int32)}
    step.runs["replay"] = seen
    return [finding.message for finding in Contract().judge(step)]


def test_padded_rows_of_offsets_span_what_the_engine_promises() -> None:
    none = PaddingRule("fill", 0)
    assert _offsets([0, 1, 1, 1], none) == []
    (said,) = _offsets([0, 1, 1, 2], none)
    assert "query_start_loc gives padded row 2 1 entries, must be 0" in said
    assert _offsets([0, 1, 1, 2], PaddingRule("free")) == []


def test_dummy_rows_of_offsets_span_what_is_promised_for_them() -> None:
    none = PaddingRule("fill", 0)
    assert _offsets([0, 1, 2, 2], none, dummies=1) == []
    (said,) = _offsets([0, 1, 1, 1], none, dummies=1)
    assert "query_start_loc gives padded row 1 0 entries, must be 1" in said


def test_rows_shown_whole_are_those_of_a_page_table() -> None:
    with pytest.raises(UsageError, match="Only rows of a page_table"):
        Field("seq_lens", "requests", "length", _FREE, whole_rows=True)
