"""Ports of servers: which they are, and that they are free again before somebody else starts."""

from __future__ import annotations

import os
import socket

import pytest

from fuzzgraph.fleet.ports import listening, wait_until_free


def listener() -> socket.socket:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def test_the_ports_of_a_process_are_those_it_listens_on() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        assert port in listening([os.getpid()])
        assert port not in listening([1 << 30])
    assert port not in listening([os.getpid()])


@pytest.mark.parametrize(
    ("family", "address", "wide"),
    [
        (socket.AF_INET, "127.0.0.1", False),
        (socket.AF_INET, "127.0.0.2", False),
        (socket.AF_INET, "0.0.0.0", True),
        (socket.AF_INET6, "::1", False),
        (socket.AF_INET6, "::ffff:127.0.0.1", False),
        (socket.AF_INET6, "::", True),
    ],
)
def test_what_other_machines_reach_is_told_from_loopback(
    family: socket.AddressFamily, address: str, wide: bool
) -> None:
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} cannot be listened on here")
        server.listen()
        port = server.getsockname()[1]
        assert port in listening([os.getpid()])
        assert (port in listening([os.getpid()], beyond_loopback=True)) == wide


def test_waiting_ends_when_the_last_port_is_free() -> None:
    servers = [listener(), listener()]
    ports = [server.getsockname()[1] for server in servers]
    pauses: list[float] = []

    def close_one(seconds: float) -> None:
        pauses.append(seconds)
        servers.pop().close()

    assert wait_until_free(ports, pause=close_one) == frozenset()
    assert len(pauses) == 2


def test_a_port_that_stays_taken_is_told_after_a_bound() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        with pytest.warns(RuntimeWarning, match=f"still listens on port {port}"):
            assert wait_until_free([port], 0.0) == {port}
