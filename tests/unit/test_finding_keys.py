"""What makes two findings the same."""

from __future__ import annotations

import msgspec

from tests.unit.reporting.runs import reported


def test_what_a_graph_saw_at_capture_is_another_finding_than_what_its_replay_does() -> None:
    replay = msgspec.structs.replace(reported().finding, stage="replay", step=2)
    capture = msgspec.structs.replace(replay, stage="capture")
    assert replay.key != capture.key
    assert capture.key == msgspec.structs.replace(capture, step=-1).key


def test_a_buffer_of_another_captured_size_is_the_same_buffer() -> None:
    of_six, of_one, other = (
        msgspec.structs.replace(reported().finding, buffer=buffer)
        for buffer in ("wrappers[6].page_table", "wrappers[1].page_table", "wrappers[1].indptr")
    )
    assert of_six.key == of_one.key != other.key
    assert of_six.buffer != of_one.buffer


def test_exceptions_of_two_functions_are_two_findings() -> None:
    raised = msgspec.structs.replace(
        reported().finding,
        buffer="",
        symptom="exception",
        detail={"where": "backend.py:526 in fill_indices"},
    )
    moved, other = (
        msgspec.structs.replace(raised, detail={"where": where})
        for where in ("backend.py:531 in fill_indices", "backend.py:526 in plan")
    )
    assert raised.key == moved.key != other.key
