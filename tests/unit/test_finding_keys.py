"""What makes two findings the same."""

from __future__ import annotations

import msgspec

from tests.unit.reporting.runs import reported


def test_what_a_graph_saw_at_capture_is_another_finding_than_what_its_replay_does() -> None:
    replay = msgspec.structs.replace(reported().finding, stage="replay", step=2)
    capture = msgspec.structs.replace(replay, stage="capture")
    assert replay.key != capture.key
    assert capture.key == msgspec.structs.replace(capture, step=-1).key
