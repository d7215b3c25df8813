"""Wheels read in parts from a server on this machine: the same files, or a plain refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzgraph.releases import wheel_parts
from fuzzgraph.releases.wheel import is_wanted, unpack
from fuzzgraph.releases.wheel_parts import PartsRefused, fetch_parts
from tests.unit.releases.wheels import COMPILED, Server, files_in, large_wheel, make_wheel, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(large_wheel(tmp_path / "wheels")) as served:
        yield served


def unpacked(wheel: Path, folder: Path) -> dict[str, bytes]:
    unpack(wheel, folder, "toyengine==1.0")
    return files_in(folder)


def test_parts_give_the_files_of_the_whole_wheel(server: Server, tmp_path: Path) -> None:
    fetched = fetch_parts(server.wheel, tmp_path / "parts", is_wanted)
    whole = unpacked(server.file, tmp_path / "whole")
    assert "toyengine/model.py" in whole
    assert unpacked(tmp_path / "parts", tmp_path / "small") == whole
    assert fetched == server.sent


def test_compiled_code_is_not_fetched(server: Server, tmp_path: Path) -> None:
    """Its last 3 MB share the end of the wheel with the directory, which is read first."""
    fetch_parts(server.wheel, tmp_path / "parts", is_wanted)
    assert server.sent < wheel_parts._END + 2000
    assert server.file.stat().st_size > 3 * len(COMPILED)
    assert COMPILED not in (tmp_path / "parts").read_bytes()


def test_neighbours_are_read_by_one_request(server: Server, tmp_path: Path) -> None:
    fetch_parts(server.wheel, tmp_path / "parts", is_wanted)
    end, first, neighbours = server.asked
    assert end == f"bytes=-{wheel_parts._END}"
    assert first.startswith("bytes=0-")


def test_a_small_wheel_is_read_by_one_request(tmp_path: Path) -> None:
    with serving(make_wheel(tmp_path)) as server:
        fetch_parts(server.wheel, tmp_path / "parts", is_wanted)
        assert (tmp_path / "parts").read_bytes() == server.file.read_bytes()
    assert len(server.asked) == 1


@pytest.mark.parametrize("end", [22, 30, 200, 1000])
def test_a_directory_longer_than_the_first_part_is_read_by_a_second(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    monkeypatch.setattr(wheel_parts, "_END", end)
    monkeypatch.setattr(wheel_parts, "_LONGEST_END", 4000)
    fetch_parts(server.wheel, tmp_path / "parts", is_wanted)
    whole = unpacked(server.file, tmp_path / "whole")
    assert unpacked(tmp_path / "parts", tmp_path / "small") == whole
    assert server.sent < 8000


def test_a_redirect_is_followed_with_its_range(tmp_path: Path, server: Server) -> None:
    with serving(server.file) as front:
        front.redirect = server.wheel
        fetch_parts(front.wheel, tmp_path / "parts", is_wanted)
    assert front.sent == 0
    assert len(server.asked) == 3


def refusing(server: Server, how: str) -> None:
    match how:
        case "no ranges":
            server.ranges = False
        case "credentials":
            server.password = "c2VjcmV0"
        case "another end":
            server.end_range = "bytes 0-9/90"
        case "a huge end":
            server.end_range = f"bytes {(99 << 40) - wheel_parts._END}-{(99 << 40) - 1}/{99 << 40}"
        case "another place":
            server.content_range = "bytes 0-9/90"
        case "another wheel":
            server.content_range = "bytes 0-66/90"
        case "no place":
            server.end_range = "bytes */90"
        case "compressed":
            server.encoding = "gzip"
        case "a short part":
            server.alter = lambda part: part[:-1]
        case "no archive":
            server.alter = lambda part: bytes(len(part))
        case "redirect":
            server.redirect = "http://192.0.2.1/files/toyengine.whl"
        case "loop":
            server.redirect = server.wheel
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("no ranges", "status 200"),
        ("credentials", "status 401"),
        ("another end", "other bytes"),
        ("a huge end", "other bytes"),
        ("another place", "other bytes"),
        ("another wheel", "other bytes"),
        ("no place", "status 206"),
        ("compressed", "status 206"),
        ("a short part", "bytes of a part are missing"),
        ("no archive", "no directory of a wheel"),
        ("redirect", "does not protect"),
        ("loop", "status 302"),
    ],
)
def test_what_gives_no_parts_is_refused(server: Server, tmp_path: Path, how: str, why: str) -> None:
    refusing(server, how)
    with pytest.raises(PartsRefused, match=why):
        fetch_parts(server.wheel, tmp_path / "parts", is_wanted)


def test_a_server_without_ranges_is_not_read_to_its_end(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    with pytest.raises(PartsRefused):
        fetch_parts(server.wheel, tmp_path / "parts", is_wanted)
    assert (tmp_path / "parts").stat().st_size == 0


def test_a_server_that_is_gone_is_a_refusal(server: Server, tmp_path: Path) -> None:
    with serving(server.file) as other:
        gone = other.wheel
    with pytest.raises(PartsRefused, match="cannot be asked"):
        fetch_parts(gone, tmp_path / "parts", is_wanted)


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1/toy.whl",
        "ftp://127.0.0.1/toy.whl",
        "file:///toy.whl",
        "toy.whl",
        "http:///",
    ],
)
def test_a_place_that_anybody_on_the_way_could_change_is_not_asked(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.build_opener", lambda *_: pytest.fail("it was asked"))
    with pytest.raises(PartsRefused, match="does not protect"):
        fetch_parts(url, tmp_path / "parts", is_wanted)


def test_an_archive_that_cannot_be_written_is_no_refusal(server: Server, tmp_path: Path) -> None:
    """Else a full disk would be answered by downloading even more."""
    with pytest.raises(FileNotFoundError):
        fetch_parts(server.wheel, tmp_path / "missing" / "parts", is_wanted)
    with pytest.raises(OSError, match="Invalid argument|No space"):
        fetch_parts(server.wheel, Path("/dev/full"), is_wanted)
