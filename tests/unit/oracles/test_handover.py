"""What is handed over, judged without a declaration: each rule finds its bug, spares its twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.handover import (
    Attended,
    Excuse,
    Handover,
    Part,
    QueryRow,
    numbers_part,
    part_of,
)
from fuzzgraph.layout import plan
from fuzzgraph.observation import Field, Observation, PaddingRule, StepRecord
from fuzzgraph.oracles.handover import Handovers


def record(mode: Mode = "decode", *, lengths: tuple[int, ...] = (4, 6)) -> StepRecord:
    """Two requests on a graph of four rows, two tokens each where drafts are verified."""
    tokens = 3 if mode == "target_verify" else 1
    rows = tuple(
        BatchRow(request=row, seq_len=length, new_tokens=tokens)
        for row, length in enumerate(lengths)
    )
    config = EngineConfig(modes=(mode,), capture_bs=(4,), draft_tokens=tokens)
    case = Case(schema_version=1, config=config, steps=(ReplayStep(mode=mode, rows=rows),))
    step = StepRecord(0, "engine", config, plan(case)[0], ())
    raw = len(lengths)
    step.runs["replay"] = Observation(raw, 4, raw * tokens, 4 * tokens)
    step.runs["eager"] = Observation(raw, raw, raw * tokens, raw * tokens)
    return step


def ints(*values: int) -> Part:
    return part_of(torch.tensor(values, dtype=torch.int32))


def kernel(**tensors: Part) -> Handover:
    return Handover("attend", "kernel", tensors=tensors)


def held(**tensors: Part) -> Handover:
    paths = {f"forward_metadata.{name}": part for name, part in tensors.items()}
    return Handover("Backend", "held", tensors=paths, types={"forward_metadata": "Metadata"})


def call(**tensors: Part) -> Handover:
    return Handover("Backend.prepare", "call", tensors=tensors)


def messages(step: StepRecord, replay: Handover, eager: Handover | None = None) -> list[str]:
    step.runs["replay"].handovers = (replay,)
    if eager is not None:
        step.runs["eager"].handovers = (eager,)
    return [found.message.partition(": ")[2] for found in Handovers().judge(step)]


@pytest.mark.parametrize("hand_over", [kernel, held])
def test_query_offsets_of_a_verify_are_those_of_the_eager_run(hand_over: Any) -> None:
    step = record("target_verify")
    eager = hand_over(cu_seqlens_q=ints(0, 3, 6))
    assert messages(step, hand_over(cu_seqlens_q=ints(0, 3, 6, 9, 12)), eager) == []
    found = messages(step, hand_over(cu_seqlens_q=ints(0, 4, 8, 12, 16)), eager)
    assert [each.split(".")[-1] for each in found] == ["cu_seqlens_q[1] is 4, the eager run had 3"]


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_plan_that_is_as_long_as_a_batch_has_tokens_is_not_compared_by_place(
    by_kernel: bool,
) -> None:
    """Of four rows and of five: each part is aligned, so that the second one begins elsewhere."""
    step = record("target_verify")
    eager, replay = ints(1, 1, 1, 1, 0, 1), ints(*[1, 1, 1, 1, 1, 0] * 2)

    def run(plan: Part) -> list[Handover]:
        launch = replace(kernel(plan=plan), plans=("plan",) if by_kernel else ())
        return [launch, held(scheduler_metadata=plan), call(scheduler_metadata=plan)]

    step.runs["replay"].handovers = tuple(run(replay))
    step.runs["replay"].handed_at_capture = (call(scheduler_metadata=replay),)
    step.runs["eager"].handovers = tuple(run(eager))
    found = {one.buffer for one in Handovers().judge(step)}
    assert found == (set() if by_kernel else {"attend.plan"})


def test_what_lies_beyond_a_rows_keys_in_a_table_may_be_anything() -> None:
    step = record(lengths=(2, 3))
    eager = kernel(page_table=part_of(torch.tensor([[3, 4, 9], [5, 6, 7]])))
    wide = torch.zeros(4, 5, dtype=torch.int64)
    wide[:2, :3] = torch.tensor([[3, 4, 0], [5, 6, 7]])
    assert messages(step, kernel(page_table=part_of(wide)), eager) == []
    wide[1, 2] = 8
    assert messages(step, kernel(page_table=part_of(wide)), eager) == [
        "attend.page_table[1, 2] is 8, the eager run had 7"
    ]


def test_offsets_of_padded_rows_do_not_decrease() -> None:
    step = record()
    eager = kernel(kv_indptr=ints(0, 4, 10))
    assert messages(step, kernel(kv_indptr=ints(0, 4, 10, 11, 12)), eager) == []
    assert messages(step, kernel(kv_indptr=ints(0, 4, 10, 0, 0)), eager) == [
        "attend.kv_indptr decreases from 10 to 0 at row 2"
    ]


def test_positions_that_equal_offsets_by_chance_may_begin_anew_in_padded_rows() -> None:
    step = record(lengths=(1,))
    step.batch = replace(step.batch, positions=np.array([0, 1]))
    eager = kernel(positions=ints(0, 1))
    assert messages(step, kernel(positions=ints(0, 1, 0)), eager) == []


def test_lengths_of_padded_rows_are_not_negative() -> None:
    step = record()
    eager = kernel(seq_lens=ints(4, 6))
    assert messages(step, kernel(seq_lens=ints(4, 6, 1, 1)), eager) == []
    assert messages(step, kernel(seq_lens=ints(4, 6, -1, 1)), eager) == [
        "attend.seq_lens holds the negative count -1"
    ]


def test_places_in_a_list_that_equal_lengths_by_chance_may_be_negative_in_padded_rows() -> None:
    step = record(lengths=(1,))  # without a past, whose length is 0
    eager = kernel(columns=ints(0))
    assert messages(step, kernel(columns=ints(0, -1, -1, -1)), eager) == []


def test_slots_that_equal_lengths_by_chance_may_be_negative_in_padded_rows() -> None:
    step = record()
    step.batch = replace(step.batch, slot_mapping=np.array([4, 6]))
    eager = kernel(slot_mapping=ints(4, 6))
    assert messages(step, kernel(slot_mapping=ints(4, 6, -1, -1)), eager) == []


def test_slots_of_compressed_keys_that_equal_lengths_by_chance_may_be_negative() -> None:
    step = record()
    step.config = msgspec.structs.replace(step.config, kv_compression="c2")
    step.batch = replace(step.batch, slot_mapping=np.array([9, 13]))
    eager = kernel(c2_out_loc=ints(4, 6))
    assert messages(step, kernel(c2_out_loc=ints(4, 6, -1, -1)), eager) == []


def seen_by(*keys: tuple[int, list[int]]) -> tuple[Attended, ...]:
    rows = tuple(QueryRow(token, 1, np.array(slots)) for token, slots in keys)
    return (Attended(rows, 4, "slot", 0.5),)


def own_keys(step: StepRecord) -> list[tuple[int, list[int]]]:
    slots = step.batch.kv_slots
    live = [(row, slots.row(row).tolist()) for row in range(step.batch.raw_bs)]
    return [*live, (2, [0]), (3, [0])]


def launched(*keys: tuple[int, list[int]]) -> Handover:
    return Handover("attend", "kernel", attended=seen_by(*keys))


def test_a_token_sees_the_keys_of_its_row_in_any_order() -> None:
    step = record()
    keys = own_keys(step)
    keys[0] = (0, keys[0][1][::-1])
    assert messages(step, launched(*keys)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda keys: keys[0][1].append(99), "token 0 sees slot 99, which is no key of it"),
        (lambda keys: keys[1][1].pop(), "token 1 does not see slot"),
        (lambda keys: keys[0][1].append(keys[0][1][0]), "sees slot 3 2 times"),
        (lambda keys: keys[3][1].append(7), "padded token 3 sees slot 7, not of the reserved"),
        (lambda keys: keys.pop(1), "computes nothing for token 1"),
    ],
    ids=["a stranger", "one too few", "one twice", "a padded row", "a row left out"],
)
def test_wrong_keys_are_told_without_an_eager_run(change: Any, expected: str) -> None:
    step = record()
    keys = own_keys(step)
    change(keys)
    (message,) = messages(step, launched(*keys))
    assert expected in message


def test_keys_in_tensors_of_their_own_are_not_taken_for_slots() -> None:
    step = record()
    elsewhere = launched(*own_keys(step))
    elsewhere.attended = tuple(replace(each, place="index") for each in elsewhere.attended)
    assert messages(step, elsewhere) == []


def test_a_live_size_in_a_forward_of_the_padded_size_is_found() -> None:
    step = record()
    replay = step.runs["replay"]
    replay.handed_at_capture = (call(seq_lens=Part((4,), "int64", 0)),)
    assert messages(step, call(seq_lens=ints(4, 6, 1, 1))) == []
    assert messages(step, call(seq_lens=ints(4, 6))) == [
        "Backend.prepare.seq_lens is [2] in a forward of the padded size, which was captured with"
        " [4]"
    ]


def test_a_live_batch_size_in_a_forward_of_the_padded_size_is_found() -> None:
    step = record()
    step.runs["replay"].handed_at_capture = (Handover("b", "call", scalars={"bs": 4}),)
    assert messages(step, Handover("b", "call", scalars={"bs": 4})) == []
    assert messages(step, Handover("b", "call", scalars={"bs": 2})) == [
        "b.bs is 2, the live size; the graph was captured with 4"
    ]


def test_a_sum_of_lengths_that_happens_to_be_a_size_is_no_size() -> None:
    step = record(lengths=(1, 1))
    captured = Handover("b", "call", scalars={"seq_lens_sum": 4})
    step.runs["replay"].handed_at_capture = (captured,)
    now = Handover("b", "call", tensors={"seq_lens": ints(1, 1)}, scalars={"seq_lens_sum": 2})
    assert messages(step, now) == []


def test_a_stale_host_mirror_is_found_by_the_eager_run() -> None:
    step = record()
    eager = call(seq_lens_cpu=ints(4, 6))
    assert messages(step, call(seq_lens_cpu=ints(4, 6, 1, 1)), eager) == []
    assert messages(step, call(seq_lens_cpu=ints(3, 5, 1, 1)), eager) == [
        "Backend.prepare.seq_lens_cpu[0] is 3, the eager run had 4"
    ]


def test_lists_of_the_host_are_held_against_those_of_the_eager_run() -> None:
    step = record()
    eager = held(new_lens=numbers_part([1, 1]))
    assert messages(step, held(new_lens=numbers_part([1, 1, 1, 1])), eager) == []
    assert messages(step, held(new_lens=numbers_part([2, 2, 1, 1])), eager) == [
        "Backend.forward_metadata.new_lens[0] is 2, the eager run had 1"
    ]


def test_a_list_by_rows_is_no_list_by_tokens() -> None:
    """Unlike a static buffer, a list has no entries beyond the rows that it is of."""
    step = record("target_verify")
    by_token = held(new_lens=numbers_part([1] * 12))
    assert messages(step, by_token, held(new_lens=numbers_part([3, 3]))) == []
    buffer = held(new_lens=ints(*[1] * 12))
    assert len(messages(step, buffer, held(new_lens=ints(3, 3)))) == 1


def test_a_launch_that_the_eager_run_has_is_missing_in_the_graph() -> None:
    step = record()
    step.runs["eager"].handovers = (kernel(), Handover("merge", "kernel"))
    assert messages(step, kernel()) == ["merge is missing in the graph step; the eager run had it"]


def test_a_lost_metadata_object_is_missing() -> None:
    step = record()
    lost = replace(held(), bound={"forward_metadata.lens": 64}, dropped=("forward_metadata",))
    assert "Backend.forward_metadata is missing" in messages(step, lost)[0]
    assert messages(step, replace(lost, bound={})) == []  # it held nothing at capture
    shown = held(seq_lens=ints(4, 6))
    assert messages(record(), Handover("Backend", "held"), shown) == [
        "Backend.forward_metadata is missing in the graph step; the eager run had it"
    ]


def test_a_declared_field_that_only_the_eager_run_shows_is_missing() -> None:
    step = record()
    step.runs["eager"].metadata = {"kv_indptr": torch.tensor([0, 4, 10])}
    assert messages(step, held()) == [
        "Backend.kv_indptr is missing in the graph step; the eager run had it"
    ]
    step.runs["replay"].metadata = {"kv_indptr": torch.tensor([0, 4, 10, 11, 12])}
    assert messages(step, held()) == []


def test_a_field_of_the_metadata_that_only_the_eager_run_has_is_missing() -> None:
    assert messages(record(), held(), held(seq_lens=ints(4, 6))) == [
        "Backend.forward_metadata.seq_lens is missing in the graph step; the eager run had it"
    ]


def test_a_field_of_the_metadata_that_only_the_graph_has_is_missing_in_the_eager_run() -> None:
    assert messages(record(), held(seq_lens=ints(4, 6, 1, 1)), held()) == [
        "Backend.forward_metadata.seq_lens is missing in the eager run; the graph step has it"
    ]


def test_offsets_of_metadata_are_one_more_than_the_graphs_rows() -> None:
    eager = held(qo_indptr=ints(0, 4, 10))
    assert messages(record(), held(qo_indptr=ints(0, 4, 10, 11, 12)), eager) == []
    assert messages(record(), held(qo_indptr=ints(0, 4, 10, 11, 12, 13)), eager) == [
        "Backend.forward_metadata.qo_indptr has 6 offsets, the graph needs 5; the eager run had 3"
    ]


def test_positions_of_all_places_of_rows_are_not_taken_for_offsets() -> None:
    step = record(lengths=(1,))
    for run in step.runs.values():
        run.row_width, run.padded_tokens = 2, 2 * run.padded_bs
    eager = held(positions=ints(0, 1))
    assert messages(step, held(positions=ints(0, 1, *[0] * 6)), eager) == []
    assert messages(step, held(qo_indptr=ints(0, 1, 1, 1)), held(qo_indptr=ints(0, 1))) == [
        "Backend.forward_metadata.qo_indptr has 4 offsets, the graph needs 5; the eager run had 2"
    ]


def test_zeros_of_metadata_are_not_taken_for_offsets() -> None:
    eager = held(slots=ints(0, 0, 0))
    assert messages(record(), held(slots=ints(0, 0, 0, 0)), eager) == []


def test_a_list_of_keys_that_looks_like_offsets_by_chance_may_be_longer_in_a_graph() -> None:
    step = record(lengths=(1, 2))
    assert (
        messages(step, held(kv_indices=ints(7, 8, 9, 0, 0, 0)), held(kv_indices=ints(0, 1, 3)))
        == []
    )


def test_a_list_of_keys_with_as_many_entries_as_offsets_is_not_compared_by_place() -> None:
    """The eager run's has an entry more than keys, which nobody wrote."""
    eager, replay = kernel(kv_indices=ints(7, 8, 12345)), kernel(kv_indices=ints(7, 8, 0, 0, 0))
    assert messages(record(lengths=(1, 1)), replay, eager) == []


def test_a_tensor_that_a_preparation_binds_anew_keeps_its_address() -> None:
    path = "forward_metadata.page_table"
    bound = replace(held(page_table=ints(1, 2, 3, 4)), bound={path: 64}, rebound={path: 64})
    assert messages(record(), bound) == []
    moved = replace(bound, rebound={path: 128})
    assert "lies at another address" in messages(record(), moved)[0]


def test_a_kernel_does_not_get_host_memory() -> None:
    assert messages(record(), kernel(seq_lens=replace(ints(1), side="device"))) == []
    assert messages(record(), kernel(seq_lens=replace(ints(1), side="host"))) == [
        "attend.seq_lens lies in the host's memory; a kernel reads the device's"
    ]


def test_a_frozen_number_is_large_enough_for_the_batch() -> None:
    eager = Handover("attend", "kernel", scalars={"max_seqlen_q": 3, "causal": True})
    for frozen, count in ((3, 0), (4, 0), (2, 1)):
        graph = Handover("attend", "kernel", scalars={"max_seqlen_q": frozen, "causal": True})
        assert len(messages(record(), graph, eager)) == count
    other = Handover("attend", "kernel", scalars={"max_seqlen_q": 3, "causal": False})
    assert messages(record(), other, eager) == [
        "attend.causal is False in the graph, the eager run has True"
    ]


def test_an_excuse_covers_its_rule_and_no_other() -> None:
    step = record()
    eager = kernel(num_splits=ints(1, 1))
    graph = kernel(num_splits=ints(2, 2, 1, 1))
    step.excuses = (Excuse("*.num_splits", "live", "a source", "splits may differ"),)
    assert messages(step, graph, eager) == []
    step.excuses = (Excuse("*.num_splits", "side", "a source", "of another rule"),)
    assert len(messages(step, graph, eager)) == 1


def test_an_excuse_of_a_kind_of_config_covers_no_other() -> None:
    step = record()
    eager, graph = kernel(ids=ints(1, 1)), kernel(ids=ints(2, 2, 1, 1))
    step.excuses = (Excuse("*.ids", "live", "a source", "they are moved", only_with="dp_size"),)
    assert len(messages(step, graph, eager)) == 1
    step.config = msgspec.structs.replace(step.config, dp_size=2)
    assert messages(step, graph, eager) == []


@pytest.mark.parametrize(("dtype", "found"), [("float32", 1), ("bfloat16", 0), ("float16", 1)])
def test_an_excuse_for_some_values_covers_no_others(dtype: str, found: int) -> None:
    step = record()
    eager, graph = kernel(ids=ints(1, 1)), kernel(ids=ints(2, 2, 1, 1))
    excuse = Excuse("*.ids", "live", "a source", "they are moved", only_with="dtype")
    step.excuses = (replace(excuse, only_as=("bfloat16",)),)
    step.config = msgspec.structs.replace(step.config, dtype=dtype)
    assert len(messages(step, graph, eager)) == found


def test_an_excuse_of_what_is_unread_covers_nothing_that_the_backend_read() -> None:
    step = record()
    step.excuses = (Excuse("*.lens", "live", "a source", "it is unread", where_unread=True),)
    replay, eager = call(lens=ints(1, 2, 0, 0)), call(lens=ints(1, 3))
    assert len(messages(step, replay, eager)) == 1
    replay.unread = frozenset({"lens"})
    assert messages(step, replace(replay), eager) == []


def test_what_is_unread_in_a_replay_may_be_read_at_capture() -> None:
    step = record()
    step.excuses = (Excuse("*.ids", "form", "a source", "it is unread", where_unread=True),)
    replay, eager = call(ids=ints(1, 2, 3, 4)), call(ids=ints(1, 2))
    replay.unread = frozenset({"ids"})
    captured = call(ids=Part((3,), "int64", 0))
    step.runs["replay"].handed_at_capture = (captured,)
    assert len(messages(step, replay, eager)) == 1
    captured.unread = frozenset({"ids"})
    step.runs["replay"].handed_at_capture = (replace(captured),)
    assert messages(step, replay, eager) == []


def test_a_batch_that_took_no_graph_is_not_held_against_one() -> None:
    step = record()
    step.runs["replay"].declined = "a rule of the engine"
    assert messages(step, kernel(seq_lens=ints(9, 9)), kernel(seq_lens=ints(4, 6))) == []


def kinds(**given: str) -> Handover:
    return Handover("b", "call", kinds={f"batch.{name}": kind for name, kind in given.items()})


def test_a_replay_hands_over_what_capture_or_eager_run_do() -> None:
    step = record()
    step.runs["replay"].handed_at_capture = (kinds(plan="a record", lens="a tensor"),)
    eager = kinds(plan="nothing", lens="a tensor")
    assert messages(step, kinds(plan="a record", lens="a tensor"), eager) == []
    assert messages(step, kinds(plan="a tensor", lens="nothing"), eager) == [
        "b.batch.plan is a tensor at a replay; capture and eager run have a record or nothing",
        "b.batch.lens is nothing at a replay; capture and eager run have a tensor",
    ]


def test_a_capture_hands_over_what_replay_and_eager_run_do() -> None:
    step = record()
    step.runs["replay"].handed_at_capture = (kinds(seq_lens_cpu="nothing"),)
    assert messages(step, kinds(seq_lens_cpu="nothing"), kinds(seq_lens_cpu="a tensor")) == []
    (found,) = messages(step, kinds(seq_lens_cpu="a tensor"), kinds(seq_lens_cpu="a tensor"))
    assert found == (
        "b.batch.seq_lens_cpu is nothing at capture; replay and eager run have a tensor"
    )
    step.runs["replay"].handed_at_capture = (kinds(spec_info="a record"),)
    assert messages(step, kinds(spec_info="a record"), kinds(spec_info="nothing")) == []
    assert messages(step, kinds(spec_info="nothing"), kinds(spec_info="nothing")) == [
        "b.batch.spec_info is a record at capture; replay and eager run have nothing"
    ]


def test_an_entry_for_each_live_row_becomes_one_for_each_row_of_the_graph() -> None:
    step, eager = record(), call(ids=ints(8, 9))
    step.runs["replay"].handed_at_capture = (Handover("b", "call"),)
    assert messages(step, call(ids=ints(8, 9, 0, 0)), eager) == []
    # A view of the whole static buffer has more; the first ones count.
    assert messages(step, call(ids=ints(8, 9, 0, 0, 0, 0, 0)), eager) == []
    assert messages(step, call(ids=ints(8, 9, 0)), eager) == [
        "Backend.prepare.ids has 3 entries at replay; the rows of the graph need 4"
    ]


def test_layers_of_other_shapes_are_compared_call_by_call() -> None:
    """A column of the first layer's keys is no row, though there are as many as live rows."""

    def layers(rows: int, others: int) -> tuple[Handover, ...]:
        shapes = ((rows, 2), (others, 9))
        return tuple(call(keys=Part(shape, "float32", 0)) for shape in shapes)

    step = record()
    step.runs["eager"].handovers = layers(2, 2)
    step.runs["replay"].handovers = (Handover("b", "call"),)
    step.runs["replay"].handed_at_capture = (*layers(4, 4), *layers(4, 4))
    assert list(Handovers().judge(step)) == []
    step.runs["replay"].handed_at_capture = (*layers(4, 3), *layers(4, 3))
    (found,) = Handovers().judge(step)
    assert "keys has 3 entries at capture; the rows of the graph need 4" in found.message


def test_of_a_table_of_chunks_the_pages_of_each_rows_last_chunk_count() -> None:
    rows = tuple(BatchRow(request=row, seq_len=length) for row, length in enumerate((9, 6)))
    config = EngineConfig(capture_bs=(4,), page_size=2, attention_chunk_size=4)
    case = Case(schema_version=1, config=config, steps=(ReplayStep(rows=rows),))
    step = StepRecord(0, "engine", config, plan(case)[0], ())
    step.runs["replay"], step.runs["eager"] = Observation(2, 4, 2, 4), Observation(2, 2, 2, 2)
    first, second = (step.batch.pages.row(row).tolist() for row in range(2))

    def table(*rows: list[int]) -> Handover:
        return call(page_table=part_of(torch.tensor(rows)))

    # Of 9 tokens the last one alone is in the third chunk, of 6 two are in the second.
    eager = table([first[4], 0], [second[2], 0])
    assert messages(step, table([first[4], 71], [second[2], 72], [0, 0], [0, 0]), eager) == []
    assert messages(step, table([first[4], 71], [second[1], 72], [0, 0], [0, 0]), eager) == [
        f"Backend.prepare.page_table[1, 0] is {second[1]}, the eager run had {second[2]}"
    ]
    whole = table(first, [*second, 0, 0])
    assert messages(step, table(first, [*second, 7, 7], [0] * 5, [0] * 5), whole) == []
    assert messages(step, table([*first[:4], 77], [*second, 7, 7], [0] * 5, [0] * 5), whole) == [
        f"Backend.prepare.page_table[0, 4] is 77, the eager run had {first[4]}"
    ]


def test_a_graph_is_captured_with_an_entry_for_each_of_its_rows() -> None:
    step = record("target_verify")
    eager = call(ids=ints(1, 2, 3, 4, 5, 6))
    replay = call(ids=ints(*range(1, 13)))
    for entries, count in ((12, 0), (11, 1), (13, 1)):
        step.runs["replay"].handed_at_capture = (call(ids=Part((entries,), "int64", 0)),)
        assert len(messages(step, replay, eager)) == count


def test_as_many_live_tokens_as_rows_are_either_where_tokens_are_padded_without_a_graph() -> None:
    step = record()
    step.runs["replay"] = Observation(2, 4, 2, 8)
    step.runs["eager"] = Observation(2, 2, 2, 4)
    for entries, count in ((8, 0), (4, 0), (5, 1)):
        step.runs["replay"].handed_at_capture = (call(ids=Part((entries,), "int64", 0)),)
        assert len(messages(step, call(ids=ints(*range(8))), call(ids=ints(0, 1)))) == count


def test_a_backend_outside_of_the_graph_gets_live_rows() -> None:
    assert messages(record(), call(ids=ints(8, 9)), call(ids=ints(8, 9))) == []


def test_a_list_of_keys_may_have_any_size() -> None:
    step = record(lengths=(1, 1))  # as many keys as rows
    step.runs["replay"].handed_at_capture = (Handover("b", "call"),)
    eager = call(kv_indices=ints(7, 8))
    assert messages(step, call(kv_indices=ints(7, 8, 0)), eager) == []


def test_a_mask_of_as_many_cells_as_ranks_pad_tokens_to_is_no_list_of_tokens() -> None:
    step = record("target_verify", lengths=(4, 6))  # 3 tokens a row: 30 cells
    step.runs["eager"] = Observation(2, 10, 6, 30)
    eager = call(mask=ints(*[1, 0] * 15))
    assert messages(step, call(mask=ints(*[1, 1] * 15)), eager) == []
    eager = call(ids=ints(*range(29)))
    step.runs["eager"] = Observation(2, 10, 6, 29)
    assert len(messages(step, call(ids=ints(5, *range(1, 29))), eager)) == 1


def batch_of_the_graph(*ids: int) -> Handover:
    return Handover("Backend", "held", tensors={"batch.ids": ints(*ids)})


@pytest.mark.parametrize(("left", "count"), [(0, 0), (5, 1)])
def test_padded_entries_hold_nothing_of_an_earlier_batch(left: int, count: int) -> None:
    step = record()
    step.runs["replay"].handovers = (batch_of_the_graph(8, 9, left, 0),)
    step.runs["screen"] = Observation(2, 4, 2, 4, handovers=(batch_of_the_graph(8, 9, 0, 0),))
    step.runs["eager"].handovers = (call(ids=ints(8, 9)),)
    found = [one.message for one in Handovers().judge(step)]
    assert len(found) == count
    assert all("ids[2] of a padded row is 5" in message for message in found)


def test_what_two_watches_took_down_under_one_name_is_judged_apart() -> None:
    """Two groups of a KV cache have a page table each."""

    def tables(first: Part, second: Part) -> tuple[Handover, ...]:
        return call(slots=first), replace(call(slots=second), watch=1)

    step = record()
    step.runs["eager"].handovers = tables(ints(5, 6), ints(7, 8))
    step.runs["replay"].handovers = tables(ints(5, 6, 0, 0), ints(7, 8, 0, 0))
    assert not list(Handovers().judge(step))
    step.runs["replay"].handovers = tables(ints(5, 6, 0, 0), ints(5, 6, 0, 0))
    (found,) = Handovers().judge(step)
    assert found.message.endswith("slots[0] is 5, the eager run had 7")


def test_what_may_depend_on_the_past_is_not_compared_without_it() -> None:
    step = record()
    step.runs["eager"].handovers = (call(is_prefilling=ints(0, 1)),)
    step.runs["replay"].handovers = (call(is_prefilling=ints(0, 1, 0, 0)),)
    fresh = Observation(2, 4, 2, 4, handovers=(call(is_prefilling=ints(1, 1, 0, 0)),))
    step.runs["screen"] = fresh
    assert len(list(Handovers().judge(step))) == 1
    rule = PaddingRule("fill", 0)
    by_past = Field("is_prefilling", "requests", "nothing", rule, unjudged="flags", past="new ones")
    step.fields = (by_past,)
    assert not list(Handovers().judge(step))


def test_where_rows_have_more_places_the_batchs_tokens_are_compared() -> None:
    """Two rows of three places, of which each uses the first."""
    step = record()
    for run in step.runs.values():
        run.row_width = 3
    eager = held(slots=ints(1, 7, 7, 2, 7, 7))
    same = held(slots=ints(1, 8, 8, 2, 8, 8, 0, 0, 0, 0, 0, 0))
    assert messages(step, same, eager) == []
    other = held(slots=ints(1, 7, 7, 9, 7, 7, 0, 0, 0, 0, 0, 0))
    (found,) = messages(step, other, eager)
    assert found.endswith("is 9, the eager run had 2")
