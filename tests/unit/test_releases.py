"""Releases: whole or not there, whatever the wheel, the disk or another process does."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fuzzgraph import releases
from fuzzgraph.errors import AdapterUnavailable, UsageError

_META = "Metadata-Version: 2.1\nName: toyengine\nVersion: {version}\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(folder: Path, version: str = "1.0", extra: dict[str, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"toyengine-{version}-py3-none-any.whl"
    info = f"toyengine-{version}.dist-info"
    members = {
        "toyengine/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": _META.format(version=version),
        f"{info}/WHEEL": _WHEEL,
        f"{info}/RECORD": "",
        **(extra or {}),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


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
    monkeypatch.setattr(releases, "_download", lambda package, version, folder: wheel)
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
    monkeypatch.setattr(releases, "_download", lambda package, version, folder: wheel)
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
    monkeypatch.setattr(releases, "_download", lambda package, version, folder: wheel)
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

    monkeypatch.setattr(zipfile.ZipFile, "extractall", fill_up)
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
