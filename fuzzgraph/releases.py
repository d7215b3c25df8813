"""Released engines, unpacked once into a cache, so that several versions lie side by side.

pip downloads the wheel of a release without its dependencies. The wheel is checked, unpacked beside
its final folder and renamed into it, so the cache holds complete releases only, whatever was
killed, and two processes may fetch at once. Nothing is installed or imported; a worker puts the
folder on its path. `make` installs the packages that an engine imports, by `constraints/`.

Environment: FUZZGRAPH_CACHE names another cache than ~/.cache/fuzzgraph; FUZZGRAPH_WHEELS names a
folder of wheels to use instead of the package index.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.process.cache import cache_root

_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]*")
_MOST_BYTES = 4 << 30
"""Unpacked size beyond which an archive is refused; sglang wheels unpack to 30 to 200 MB."""


@dataclass(frozen=True, slots=True)
class Release:
    """One unpacked release."""

    package: str
    version: str
    path: Path
    """Folder to put on `sys.path`."""


def cache_folder() -> Path:
    """Where releases lie: <cache>/releases/<package>/<version>."""
    return cache_root() / "releases"


def parse(requirement: str) -> tuple[str, str]:
    """Package and version of 'sglang==0.5.12'.

    Raises:
        UsageError: it has another form.

    >>> parse("sglang==0.5.12")
    ('sglang', '0.5.12')
    """
    package, equals, version = requirement.partition("==")
    if not equals:
        raise UsageError(
            f"release={requirement!r} names no version. Write PACKAGE==VERSION, for example "
            "sglang==0.5.12."
        )
    _check_names(package, version)
    return package, version


def _check_names(package: str, version: str) -> None:
    """Both become folder names and an argument of pip."""
    for what, value, form in (
        ("package", package, _PACKAGE), ("release", version, _VERSION),
    ):  # fmt: skip
        if not form.fullmatch(value):
            raise UsageError(
                f"{what}={value!r} is not a {what} name. Write for example sglang==0.5.12."
            )


def installed() -> list[Release]:
    """Unpacked releases, sorted by package and version."""
    root = cache_folder()
    folders = [path for path in sorted(root.glob("*/*")) if path.is_dir()]
    found = [Release(path.parent.name, path.name, path) for path in folders]
    whole = [entry for entry in found if _VERSION.fullmatch(entry.version)]
    return sorted(whole, key=lambda entry: (entry.package, _version_key(entry.version)))


def _version_key(version: str) -> list[tuple[int, str]]:
    """0.5.9 before 0.5.10."""
    parts = re.findall(r"\d+|[a-z]+", version)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def oldest_first(versions: Iterable[str]) -> list[str]:
    """Each version once, in the order of releases."""
    return sorted(set(versions), key=_version_key)


def available(package: str) -> list[str]:
    """Versions of a package, oldest first: those of the index and of the cache, no pre-releases."""
    _check_names(package, "0")
    wheels = os.environ.get("FUZZGRAPH_WHEELS")
    source = ["--no-index", "--find-links", wheels] if wheels else []
    command = [
        sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check",
        "--no-input", *source, package,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    cached = {entry.version for entry in installed() if entry.package == package}
    known = {version.strip() for version in listed[1].split(",")} if listed else set()
    return oldest_first(known | cached)


def ensure(package: str, version: str) -> Path:
    """Folder of a release, which is fetched if it is missing.

    Raises:
        UsageError, AdapterUnavailable: as `fetch`.
    """
    _check_names(package, version)
    path = cache_folder() / package / version
    return path if path.is_dir() else fetch(package, version)


def fetch(package: str, version: str) -> Path:
    """Fetch a release into the cache; nothing happens if it is there already.

    Raises:
        UsageError: no such release, a damaged wheel, no room, a cache that cannot be written.
        AdapterUnavailable: pip or the package index cannot be reached.
    """
    _check_names(package, version)
    final = cache_folder() / package / version
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(final.parent / f".{version}.lock"):
            if not final.is_dir():
                _download_and_unpack(package, version, final)
    except OSError as error:
        raise _unusable(final.parent, error) from None
    return final


def _unusable(folder: Path, error: OSError) -> UsageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UsageError(
            f"cache={str(folder)!r}: no room left on the disk. Free some, or name another folder "
            "with FUZZGRAPH_CACHE. Nothing was left half unpacked."
        )
    return UsageError(
        f"cache={str(folder)!r} cannot be used ({error.strerror or error}). Name a folder that you "
        "may write with FUZZGRAPH_CACHE."
    )


def _download_and_unpack(package: str, version: str, final: Path) -> None:
    """Download and unpack beside `final`, then rename; the lock is held."""
    prefix = f".partial-{version}-"
    for left_over in final.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        wheel = _download(package, version, work)
        unpacked = work / "unpacked"
        _unpack(wheel, unpacked, f"{package}=={version}")
        os.rename(unpacked, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(package: str, version: str, folder: Path) -> Path:
    """The wheel of a release, by the pip of this Python."""
    wheels = os.environ.get("FUZZGRAPH_WHEELS")
    source = ["--no-index", "--find-links", wheels] if wheels else []
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--only-binary", ":all:", *source, "--dest", str(folder),
        f"{package}=={version}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        raise _refusal(f"{package}=={version}", wheels, done.stderr)
    return found[0]


def _refusal(requirement: str, wheels: str | None, said: str) -> UsageError:
    """The error that says what pip's failure means."""
    where = f"FUZZGRAPH_WHEELS={wheels!r}" if wheels else "the package index"
    if "No space left on device" in said:
        return _unusable(cache_folder(), OSError(errno.ENOSPC, "No space left on device"))
    if "No module named pip" in said:
        return AdapterUnavailable(
            f"{requirement} cannot be fetched: {sys.executable} has no pip. "
            "Run: python -m ensurepip."
        )
    if "onnection" in said or "name resolution" in said:
        return AdapterUnavailable(
            f"{requirement} cannot be fetched: {where} is not reachable. Check the network, or put "
            "the wheel into a folder and name it with FUZZGRAPH_WHEELS."
        )
    if "atching distribution" in said or "find a version" in said:
        return UsageError(
            f"{requirement} does not exist in {where} for this Python and system."
            f"{_known_versions(said)} Name a release that is there."
        )
    last = (said.strip().splitlines() or ["no message"])[-1]
    return UsageError(f"{requirement} cannot be fetched from {where}: {last}")


def _known_versions(said: str) -> str:
    """The newest versions that pip listed."""
    listed = re.search(r"from versions: ([^)]+)\)", said)
    if listed is None or listed[1].strip() == "none":
        return ""
    return " Known releases, newest last: " + ", ".join(listed[1].split(", ")[-8:]) + "."


def _unpack(wheel: Path, folder: Path, requirement: str) -> None:
    """All files of a wheel that is whole and stays inside `folder`.

    Raises:
        UsageError: it is damaged, writes outside, or is too large for the disk.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            _check_members(archive, folder, requirement)
            if (bad := archive.testzip()) is not None:
                raise _damaged(requirement, wheel, f"{bad} does not match its checksum")
            archive.extractall(folder)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise _damaged(requirement, wheel, str(error)) from None


def _damaged(requirement: str, wheel: Path, why: str) -> UsageError:
    return UsageError(
        f"{requirement}: the wheel {wheel.name} is damaged ({why}). Fetch it again; if it comes "
        "from FUZZGRAPH_WHEELS, replace it there."
    )


def _check_members(archive: zipfile.ZipFile, folder: Path, requirement: str) -> None:
    """An archive is untrusted: it must not reach beyond its folder or fill the disk."""
    members = archive.infolist()
    for member in members:
        path = PurePosixPath(member.filename)
        link = stat.S_ISLNK(member.external_attr >> 16)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or link:
            raise UsageError(
                f"{requirement}: the wheel holds {member.filename!r}, which would be written "
                "outside its folder. Do not use this wheel."
            )
    size = sum(member.file_size for member in members)
    free = shutil.disk_usage(folder.parent).free
    if size > _MOST_BYTES:
        raise UsageError(
            f"{requirement}: the wheel unpacks to {size} bytes, more than {_MOST_BYTES}. "
            "Do not use this wheel."
        )
    if size > free:
        raise _unusable(folder.parent.parent, OSError(errno.ENOSPC, "No space left on device"))
