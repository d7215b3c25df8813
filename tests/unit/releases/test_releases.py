"""Releases: whole or not there, whatever the wheel, the disk or another process does."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version as version_of
from pathlib import Path

import pytest

from fuzzgraph import releases
from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.releases import pip_index, wheel_parts
from fuzzgraph.releases.wheel import unpack
from tests.unit.releases.wheels import Server, files_in, large_wheel, make_wheel, serving

needs_dry_pip = pytest.mark.skipif(
    tuple(map(int, version_of("pip").split(".")[:2])) < (25, 3),
    reason="needs pip 25.3 of pyproject.toml, which make setup installs",
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip asks instead of an index, and an empty cache."""
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FUZZGRAPH_WHEELS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def left_overs() -> list[str]:
    """What lies in the cache and is no whole release."""
    found = releases.cache_folder().glob("*/.partial*")
    return [path.name for path in found]


def no_pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    raise AssertionError(f"pip was called: {command}")


def test_a_fetched_release_can_be_put_on_the_path(wheels: Path) -> None:
    make_wheel(wheels, "1.0")
    path = releases.fetch("toyengine", "1.0")
    assert (path / "toyengine" / "__init__.py").read_text() == "VERSION = '1.0'\n"
    assert [(r.package, r.version, r.path) for r in releases.installed()] == [
        ("toyengine", "1.0", path)
    ]
    assert left_overs() == []


def test_ensure_does_nothing_where_the_release_is_there(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels)
    path = releases.ensure("toyengine", "1.0")
    monkeypatch.setattr(subprocess, "run", no_pip)
    assert releases.ensure("toyengine", "1.0") == path
    assert releases.fetch("toyengine", "1.0") == path


def test_versions_are_listed_in_their_order(wheels: Path) -> None:
    for version in ("0.5.10", "0.5.9", "0.5.12"):
        (releases.cache_folder() / "toyengine" / version).mkdir(parents=True)
    assert [entry.version for entry in releases.installed()] == ["0.5.9", "0.5.10", "0.5.12"]


def test_a_version_that_does_not_exist_names_those_that_do(wheels: Path) -> None:
    make_wheel(wheels, "1.0")
    with pytest.raises(UsageError, match=r"toyengine==9\.9 does not exist in FUZZGRAPH_WHEELS"):
        releases.fetch("toyengine", "9.9")
    assert releases.installed() == []
    assert left_overs() == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param(lambda content: content[:200], "damaged", id="cut short"),
        pytest.param(lambda content: content.replace(b"VERSION =", b"VERSIOM ="), "damaged",
                     id="a byte flipped"),
    ],
)  # fmt: skip
def test_a_damaged_wheel_is_refused_and_leaves_nothing(
    wheels: Path, damage: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(wheels)
    wheel.write_bytes(damage(wheel.read_bytes()))  # type: ignore[operator]
    monkeypatch.setattr(releases, "wheel_address", lambda requirement, folder: None)
    monkeypatch.setattr(releases, "download", lambda requirement, folder: wheel)
    with pytest.raises(UsageError, match=said) as caught:
        releases.fetch("toyengine", "1.0")
    assert "\n" not in str(caught.value)
    assert releases.installed() == []
    assert left_overs() == []


@pytest.mark.parametrize("name", ["../escaped.py", "/tmp/escaped.py", "a/../../escaped.py",
                                  "a\\..\\escaped.py"])  # fmt: skip
def test_a_wheel_that_writes_outside_its_folder_is_refused(
    wheels: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(wheels, extra={name: "stolen"})
    monkeypatch.setattr(releases, "wheel_address", lambda requirement, folder: None)
    monkeypatch.setattr(releases, "download", lambda requirement, folder: wheel)
    with pytest.raises(UsageError, match="outside its folder"):
        releases.fetch("toyengine", "1.0")
    assert list(wheels.parent.rglob("escaped.py")) == []
    assert releases.installed() == []


def test_a_link_in_a_wheel_is_refused(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(wheels)
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("toyengine/passwords")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    monkeypatch.setattr(releases, "wheel_address", lambda requirement, folder: None)
    monkeypatch.setattr(releases, "download", lambda requirement, folder: wheel)
    with pytest.raises(UsageError, match="toyengine/passwords"):
        releases.fetch("toyengine", "1.0")


def test_a_full_disk_is_said_before_anything_is_unpacked(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels)
    usage = shutil._ntuple_diskusage(100, 100, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UsageError, match="no room left"):
        releases.fetch("toyengine", "1.0")
    assert releases.installed() == []
    assert left_overs() == []


def test_a_disk_that_fills_up_while_unpacking_leaves_nothing(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels)

    def fill_up(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "open", fill_up)
    with pytest.raises(UsageError, match="no room left"):
        releases.fetch("toyengine", "1.0")
    assert releases.installed() == []
    assert left_overs() == []


def test_a_cache_that_cannot_be_written_is_named(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="FUZZGRAPH_CACHE"):
        releases.fetch("toyengine", "1.0")


def test_a_fetch_that_was_killed_is_swept_by_the_next_one(wheels: Path) -> None:
    make_wheel(wheels)
    half = releases.cache_folder() / "toyengine" / ".partial-1.0-dead" / "unpacked"
    half.mkdir(parents=True)
    assert releases.installed() == []
    releases.fetch("toyengine", "1.0")
    assert left_overs() == []


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("/usr/bin/python: No module named pip", AdapterUnavailable, "ensurepip"),
        ("NewConnectionError: Temporary failure in name resolution", AdapterUnavailable, "network"),
        ("OSError: [Errno 28] No space left on device", UsageError, "no room left"),
        ("something else\nERROR: the last line", UsageError, "ERROR: the last line"),
    ],
    ids=["no pip", "no network", "no room", "anything else"],
)
def test_what_pip_says_becomes_one_line(
    said: str, kind: type[Exception], message: str, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(kind, match=message) as caught:
        releases.fetch("toyengine", "1.0")
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "requirement", ["sglang", "sglang==", "sglang==../x", "-r==1", "sg/lang==1", "==1", "a==1;b"]
)
def test_what_is_no_requirement_is_refused(requirement: str) -> None:
    with pytest.raises(UsageError, match="sglang==0.5.12"):
        releases.parse(requirement)


def test_a_requirement_is_taken_apart() -> None:
    assert releases.parse("sglang==0.5.12.post1") == ("sglang", "0.5.12.post1")


def test_two_processes_may_fetch_the_same_release_at_once(wheels: Path) -> None:
    make_wheel(wheels)
    code = "from fuzzgraph import releases; print(releases.fetch('toyengine', '1.0'))"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [child.communicate(timeout=60)[0].strip() for child in children]
    assert said == [str(releases.cache_folder() / "toyengine" / "1.0")] * 2
    assert (Path(said[0]) / "toyengine" / "__init__.py").is_file()
    assert left_overs() == []


def test_a_release_lies_under_the_name_that_pip_knows(wheels: Path) -> None:
    make_wheel(wheels)
    path = releases.fetch("ToyEngine", "1.0")
    assert path == releases.cache_folder() / "toyengine" / "1.0"
    assert [entry.path for entry in releases.installed("toy-engine")] == []
    assert [entry.path for entry in releases.installed("toyengine")] == [path]


def test_an_import_name_finds_its_distribution(wheels: Path) -> None:
    (releases.cache_folder() / "flashinfer-python" / "0.6.18").mkdir(parents=True)
    (releases.cache_folder() / "flashinfer" / "9.0").mkdir(parents=True)  # a stranger's package
    assert releases.parse("flashinfer==0.6.18") == ("flashinfer-python", "0.6.18")
    assert releases.ensure("flashinfer", "0.6.18").parent.name == "flashinfer-python"
    assert [entry.version for entry in releases.installed("flashinfer")] == ["0.6.18"]
    assert releases.available("flashinfer") == ["0.6.18"]


def test_of_flashinfer_no_sources_for_its_compiler_are_kept(wheels: Path) -> None:
    files = {"flashinfer/decode.py": "", "flashinfer/data/csrc/decode.cu": "kernel"}
    make_wheel(wheels, "0.7.2", files, name="flashinfer_python")
    path = releases.fetch("flashinfer", "0.7.2")
    assert {name for name in files_in(path) if "decode" in name} == {"flashinfer/decode.py"}


@pytest.fixture
def server(wheels: Path, tmp_path: Path) -> Iterator[Server]:
    """Serves a wheel that `wheels` has as well, where pip finds it."""
    large_wheel(wheels)
    with serving(large_wheel(tmp_path / "served")) as served:
        yield served


def whole_files(server: Server, tmp_path: Path) -> dict[str, bytes]:
    unpack(server.file, tmp_path / "whole", "toyengine==1.0")
    return files_in(tmp_path / "whole")


def served_at(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let pip name the server's wheel; gives what is downloaded whole from then on."""
    downloaded: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        downloaded.append(requirement)
        return pip_index.download(requirement, folder)

    monkeypatch.setattr(releases, "wheel_address", lambda requirement, folder: server.wheel)
    monkeypatch.setattr(releases, "download", download)
    return downloaded


def test_a_release_is_fetched_in_parts(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded = served_at(server, monkeypatch)
    path = releases.fetch("toyengine", "1.0")
    assert files_in(path) == whole_files(server, tmp_path)
    assert "toyengine/model.py" in files_in(path)
    assert server.sent < server.file.stat().st_size / 4
    assert downloaded == []
    assert left_overs() == []


@pytest.mark.parametrize("how", ["no ranges", "credentials", "wrong bytes", "cut short"])
def test_the_whole_wheel_gives_the_same_files_where_parts_fail(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    downloaded = served_at(server, monkeypatch)
    if how == "no ranges":
        server.ranges = False
    elif how == "credentials":
        server.password = "c2VjcmV0"
    elif how == "wrong bytes":  # the directory is right, a file is not
        server.alter = lambda part: part.replace(b"LAYERS = 1", b"LAYERS = 2")
    else:
        server.alter = lambda part: part[: wheel_parts._END] if len(part) > 5000 else part[:10]
    path = releases.fetch("toyengine", "1.0")
    assert files_in(path) == whole_files(server, tmp_path)
    assert downloaded == ["toyengine==1.0"]
    assert left_overs() == []


def test_a_file_that_is_wrong_in_parts_and_in_the_whole_leaves_nothing(
    server: Server, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wheel in (server.file, wheels / server.file.name):
        wheel.write_bytes(wheel.read_bytes().replace(b"LAYERS = 1", b"LAYERS = 2"))
    downloaded = served_at(server, monkeypatch)
    with pytest.raises(UsageError, match=r"model\.py"):
        releases.fetch("toyengine", "1.0")
    assert downloaded == ["toyengine==1.0"]
    assert releases.installed() == []
    assert left_overs() == []


@pytest.fixture
def index(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server as pip's only index, whatever this machine's settings are."""
    for name in ("FUZZGRAPH_WHEELS", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    monkeypatch.setenv("PIP_INDEX_URL", server.index)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return server


@needs_dry_pip
def test_pip_tells_where_the_wheel_lies_without_fetching_it(index: Server, tmp_path: Path) -> None:
    path = releases.fetch("toyengine", "1.0")
    assert files_in(path) == whole_files(index, tmp_path)
    assert index.sent < index.file.stat().st_size / 2
    assert "" not in index.asked
    assert left_overs() == []


def test_an_older_pip_downloads_the_whole_wheel(
    index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_index, "version", lambda package: "23.2.1")
    assert files_in(releases.fetch("toyengine", "1.0")) == whole_files(index, tmp_path)
    assert index.asked == [""]


@needs_dry_pip
def test_a_server_on_which_pip_finds_no_ranges_gives_the_whole_wheel(
    index: Server, tmp_path: Path
) -> None:
    index.heads = False
    assert files_in(releases.fetch("toyengine", "1.0")) == whole_files(index, tmp_path)
    assert "" in index.asked


@needs_dry_pip
def test_credentials_that_only_pip_has_fetch_the_whole_wheel(
    index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.password = "dG95czpzZWNyZXQ="  # toys:secret
    with_password = index.index.replace("http://", "http://toys:secret@")
    monkeypatch.setenv("PIP_INDEX_URL", with_password)
    assert files_in(releases.fetch("toyengine", "1.0")) == whole_files(index, tmp_path)
    assert "" in index.asked


def test_an_index_with_nothing_but_sources_has_no_such_release(
    index: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.file = index.file.rename(index.file.with_name("toyengine-1.0.tar.gz"))
    with pytest.raises(UsageError, match=r"toyengine==1\.0 does not exist in the package index"):
        releases.fetch("toyengine", "1.0")
    assert index.asked == []


@needs_dry_pip
def test_a_wheel_in_a_folder_is_read_where_it_lies(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels)
    monkeypatch.setattr(releases, "download", lambda *_: pytest.fail("it was copied"))
    releases.fetch("toyengine", "1.0")
    assert [path.name for path in wheels.iterdir()] == ["toyengine-1.0-py3-none-any.whl"]
