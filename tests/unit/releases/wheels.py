"""Invented wheels, and a server on this machine that gives them with or without ranges."""

from __future__ import annotations

import base64
import hashlib
import random
import re
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_META = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
COMPILED = random.Random(1).randbytes(3 << 20)

Alter = Callable[[bytes], bytes]


def recorded(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    return f"sha256={digest.rstrip('=')}"


def make_wheel(
    folder: Path,
    version: str = "1.0",
    extra: Mapping[str, str | bytes] | None = None,
    records: Mapping[str, str] | None = None,
    name: str = "toyengine",
) -> Path:
    """A wheel of a distribution that holds toyengine, its members in this order.

    Args:
        records: file -> what RECORD says of it in place of its true hash; "" leaves it out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    texts = {
        "toyengine/__init__.py": f"VERSION = {version!r}\n",
        **(extra or {}),
        f"{info}/METADATA": _META.format(name=name, version=version),
        f"{info}/WHEEL": _WHEEL,
    }
    members = {name: t if isinstance(t, bytes) else t.encode() for name, t in texts.items()}
    hashes = {name: recorded(content) for name, content in members.items()} | {**(records or {})}
    lines = [f'"{name}",{said},\n' for name, said in hashes.items() if said]
    members[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def large_wheel(folder: Path) -> Path:
    """9 MB of compiled code around 3 files that are wanted, two of them neighbours."""
    files: dict[str, str | bytes] = {
        "toyengine/_C.abi3.so": COMPILED,
        "toyengine/configs/tuned.json": "{}",
        "toyengine/model.py": "LAYERS = 1\n",
        "toyengine/_D.abi3.so": COMPILED,
        "toyengine/_E.abi3.so": COMPILED,
    }
    return make_wheel(folder, extra=files)


def files_in(folder: Path) -> dict[str, bytes]:
    """Path -> content of all files below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


class Server:
    """What `serving` gives: an index at `index`, the wheel at `wheel`, and what was asked of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.ranges = True
        self.heads = True
        """Whether HEAD is answered, which pip asks before a range."""
        self.encoding = ""
        self.password = ""
        """Basic credentials that every request has to bring, base64."""
        self.redirect = ""
        self.alter: Alter = lambda part: part
        """Applied to the body of each answer to a range."""
        self.content_range = ""
        """In place of the true header of a part that is not the end."""
        self.end_range = ""
        """Likewise of the end."""
        self.port = 0
        self.asked: list[str] = []
        """Range headers of requests for the wheel, "" for all of it."""
        self.sent = 0
        """Bytes of the wheel."""

    @property
    def index(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    @property
    def wheel(self) -> str:
        return f"http://127.0.0.1:{self.port}/files/{self.file.name}"

    def answer(self, path: str, range_: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if path.startswith("/simple/"):
            page = f'<!DOCTYPE html><html><body><a href="{self.wheel}">{self.file.name}</a></body>'
            return 200, {"Content-Type": "text/html"}, f"{page}</html>".encode()
        if path != f"/files/{self.file.name}":
            return 404, {}, b""
        if self.redirect:
            return 302, {"Location": self.redirect}, b""
        content = self.file.read_bytes()
        said = re.fullmatch(r"bytes=(\d*)-(\d*)", range_)
        if said is None or not self.ranges:
            return 200, {}, content
        first, last = said.groups()
        start = int(first) if first else max(0, len(content) - int(last))
        end = min(int(last) + 1 if first and last else len(content), len(content))
        changed = self.content_range if first else self.end_range
        headers = {"Content-Range": changed or f"bytes {start}-{end - 1}/{len(content)}"}
        if self.encoding:
            headers["Content-Encoding"] = self.encoding
        return 206, headers, self.alter(content[start:end])


@contextmanager
def serving(file: Path) -> Iterator[Server]:
    """A server on a free port of this machine."""
    server = Server(file)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # each answer ends with its connection

        def do_GET(self) -> None:
            self._reply(with_body=True)

        def do_HEAD(self) -> None:
            self._reply(with_body=False)

        def _reply(self, *, with_body: bool) -> None:
            status, headers, body = server.answer(self.path, self.headers.get("Range", ""))
            if server.password and self.headers.get("Authorization") != f"Basic {server.password}":
                status, headers, body = 401, {"WWW-Authenticate": 'Basic realm="toys"'}, b""
            if self.command == "HEAD" and not server.heads:
                status = 405
            self.send_response(status)
            length = {"Content-Length": str(len(body))}
            ranges = {"Accept-Ranges": "bytes"} if server.ranges else {}
            for name, value in (length | ranges | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body and self.path.startswith("/files/") and status in (200, 206):
                server.asked.append(self.headers.get("Range", ""))
                server.sent += len(body)
            if with_body:
                with suppress(ConnectionError):  # a client need not read what it does not want
                    self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
