"""A real Redis server for a test, on a port of its own; its ports are free again at the end."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzzgraph.fleet.ports import descendants, listening, wait_until_free

BINARY = shutil.which("redis-server")
WHY_NOT = "needs the program redis-server (Debian: apt install redis-server)"


class RedisServer:
    """One server process; it can be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = frozenset({self.port})

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert BINARY is not None, WHY_NOT
        words = [BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--dir"]
        words += [str(self._folder), "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 0.2) as there:
                    there.sendall(b"PING\r\n")
                    if there.recv(5) == b"+PONG":
                        break
            except OSError:
                time.sleep(0.02)
        self._ports |= listening(descendants(self._process.pid))

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        wait_until_free(self._ports)


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.close()
