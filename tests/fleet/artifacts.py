"""Stands for GitHub's API on this machine: a real HTTP server with the artifacts of a repository.

Hypothesis asks https://api.github.com and lets nobody set another address, so an opener of urllib's
carries whatever is asked of an https address to the server here, the address in its path.
"""

from __future__ import annotations

import io
import json
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LISTING = "/api.github.com/repos/someone/engine/actions/artifacts"
ZIP = "/api.github.com/artifacts/2/zip"
STORAGE = "/storage.example/2.zip"


@dataclass
class Artifacts:
    """What the server answers by path, and what it was asked."""

    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Path -> status and body; of a redirect the body is the address."""
    silent: bool = False
    """Whether it takes requests and answers none."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and authorization of each request."""

    def offer(self, archive: bytes, *, name: str = "fuzzgraph-examples") -> None:
        """A repository whose newest artifact of that name is this one."""
        url = "https://api.github.com/artifacts/{}/zip"
        listed = [
            {"name": name, "created_at": f"2026-0{day}-01", "archive_download_url": url.format(day)}
            for day in (1, 2)
        ]
        other = {**listed[1], "name": "coverage", "created_at": "2026-09-01"}
        self.answers = {
            LISTING: (200, json.dumps({"artifacts": [*listed, other]}).encode()),
            ZIP: (302, b"https://storage.example/2.zip"),
            STORAGE: (200, archive),
        }


def zipped(folder: Path) -> bytes:
    """A folder as the workflow uploads it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder))
    return archive.getvalue()


@contextmanager
def github() -> Iterator[Artifacts]:
    """The server, with all https addresses leading to it."""
    artifacts, over = Artifacts(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            artifacts.asked.append((self.path, self.headers.get("Authorization", "")))
            if artifacts.silent:
                over.wait()
                return
            status, body = artifacts.answers.get(self.path, (404, b"{}"))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body.decode())
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    here = urllib.request.build_opener(urllib.request.ProxyHandler({}), _here(server.server_port))
    urllib.request.install_opener(here)
    try:
        yield artifacts
    finally:
        urllib.request._opener = None  # type: ignore[attr-defined]
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _here(port: int) -> urllib.request.HTTPSHandler:
    class Here(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> HTTPResponse:
            there = urllib.request.Request(
                f"http://127.0.0.1:{port}/{request.host}{request.selector}"
            )
            there.headers, there.unredirected_hdrs = request.headers, request.unredirected_hdrs
            there.timeout = request.timeout
            return self.do_open(HTTPConnection, there)

    return Here()
