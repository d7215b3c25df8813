"""What comes over the channel between parent and child is a message of ours, or refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from fuzzgraph.worker.messages import Answer, Channel, FromChild, Garbage, Ready


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel[FromChild]]]:
    theirs, ours = socket.socketpair()
    channel: Channel[FromChild] = Channel(ours, FromChild)
    with closing(theirs), closing(channel):
        yield theirs, channel


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b'{"type":"Sabotage"}',
        b'{"type":"Failed","error":"\xff","traceback":""}',
        b'{"findings":' + b"[" * 100_000,
    ],
    ids=["no JSON", "an unknown tag", "no text", "nested beyond all bounds"],
)
def test_a_line_that_is_no_message_is_garbage_and_the_next_one_is_read(
    line: bytes, ends: tuple[socket.socket, Channel[FromChild]]
) -> None:
    theirs, channel = ends
    theirs.sendall(line + b'\n{"type":"Ready"}\n')
    with pytest.raises(Garbage):
        channel.receive()
    assert channel.receive() == Ready()


def test_a_message_that_comes_in_parts_is_read_whole(
    ends: tuple[socket.socket, Channel[FromChild]],
) -> None:
    theirs, channel = ends
    theirs.sendall(b'{"type":"Ans')
    theirs.sendall(b'wer","steps":3}\n')
    assert channel.receive() == Answer(steps=3)
