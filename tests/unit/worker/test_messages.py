"""What comes over the channel between parent and child is a message of ours, or refused."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from fuzzgraph.worker.messages import Answer, Channel, Entered, FromChild, InvalidMessage, Ready


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
    with pytest.raises(InvalidMessage):
        channel.receive()
    assert channel.receive() == Ready()


def test_a_message_that_comes_in_parts_is_read_whole(
    ends: tuple[socket.socket, Channel[FromChild]],
) -> None:
    theirs, channel = ends
    theirs.sendall(b'{"type":"Ans')
    theirs.sendall(b'wer","steps":3}\n')
    assert channel.receive() == Answer(steps=3)


DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "SIGSEGV": "os.kill(os.getpid(), 11)",
    "os._exit": "os._exit(7)",
}
CHILD = """
import os, socket
end = socket.socket(fileno={descriptor})
end.sendall(b'{{"type":"Entered","stage":"replay","step":2}}\\n')
{death}
"""


@pytest.mark.parametrize("death", DEATHS)
def test_a_stage_that_a_child_entered_is_read_after_its_death(death: str) -> None:
    ours, theirs = socket.socketpair()
    channel: Channel[FromChild] = Channel(ours, FromChild)
    channel.send(Ready())  # never read by the child, which must not cost what it has sent
    code = CHILD.format(descriptor=theirs.fileno(), death=DEATHS[death])
    with closing(channel), closing(theirs):
        ended = subprocess.run([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
        theirs.close()
        assert ended.returncode != 0
        assert channel.receive() == Entered(stage="replay", step=2)
        with pytest.raises(EOFError):
            channel.receive()


def test_a_child_that_tells_of_stages_without_end_still_times_out(
    ends: tuple[socket.socket, Channel[FromChild]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class TimeIsUp(Exception): ...

    def look() -> None:
        raise TimeIsUp

    theirs, channel = ends
    theirs.sendall(b'{"type":"Entered"}\n' * 2)
    with pytest.raises(TimeIsUp):
        for _ in range(2):
            channel.receive(look)
