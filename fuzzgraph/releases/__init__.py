"""Released engines, unpacked once into a cache, so that several versions lie side by side.

Of a wheel only what host code reads is fetched and kept (`wheel.is_wanted`): pip says where the
wheel lies, its wanted files are read out of it by range requests, and each is compared with the
hash in the wheel's own list. Where that does not work pip downloads the wheel whole, which gives
the same files. They are unpacked beside the final folder and renamed into it, so the cache holds
complete releases only, whatever was killed, and two processes may fetch at once. Nothing is
installed or imported; a worker puts the folder on its path. `make` installs the packages that an
engine imports, by `constraints/`.

Environment: FUZZGRAPH_CACHE names another cache than ~/.cache/fuzzgraph; FUZZGRAPH_WHEELS names a
folder of wheels to use instead of the package index.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from fuzzgraph.errors import UsageError
from fuzzgraph.process.cache import cache_root
from fuzzgraph.releases.pip_index import download, index_versions, wheel_address
from fuzzgraph.releases.wheel import DamagedWheel, is_wanted, unpack
from fuzzgraph.releases.wheel_parts import PartsRefused, Wanted, fetch_parts
from fuzzgraph.targets.packages import distribution_of, unread_folders

_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True, slots=True)
class Release:
    """One unpacked release."""

    package: str
    """As pip calls it, e.g. 'flashinfer-python'."""
    version: str
    path: Path
    """Folder to put on `sys.path`."""


def cache_folder() -> Path:
    """Where releases lie: <cache>/releases/<package>/<version>, the package as pip calls it."""
    return cache_root() / "releases"


def parse(requirement: str) -> tuple[str, str]:
    """Package, as pip calls it, and version of 'sglang==0.5.12'.

    Raises:
        UsageError: it has another form.

    >>> parse("sglang==0.5.12"), parse("flashinfer==0.6.18")
    (('sglang', '0.5.12'), ('flashinfer-python', '0.6.18'))
    """
    package, equals, version = requirement.partition("==")
    if not equals:
        raise UsageError(
            f"release={requirement!r} names no version. Write PACKAGE==VERSION, for example "
            "sglang==0.5.12."
        )
    return _distribution(package, version), version


def _distribution(package: str, version: str = "0") -> str:
    """What pip calls a package; both names become folder names and an argument of pip."""
    for what, value, form in (
        ("package", package, _PACKAGE), ("release", version, _VERSION),
    ):  # fmt: skip
        if not form.fullmatch(value):
            raise UsageError(
                f"{what}={value!r} is not a {what} name. Write for example sglang==0.5.12."
            )
    return distribution_of(package)


def installed(package: str = "") -> list[Release]:
    """Unpacked releases, sorted by package and version.

    Args:
        package: only those of this one; its import name will do.
    """
    root = cache_folder()
    wanted = _distribution(package) if package else "*"
    folders = [path for path in sorted(root.glob(f"{wanted}/*")) if path.is_dir()]
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
    """Versions of a package, oldest first: those of the index and of the cache, no pre-releases.

    Args:
        package: its import name, or what pip calls it; so in `ensure` and `fetch`.
    """
    cached = {entry.version for entry in installed(package)}
    return oldest_first(index_versions(_distribution(package)) | cached)


def ensure(package: str, version: str) -> Path:
    """Folder of a release, which is fetched if it is missing.

    Raises:
        UsageError, AdapterUnavailable: as `fetch`.
    """
    path = cache_folder() / _distribution(package, version) / version
    return path if path.is_dir() else fetch(package, version)


def fetch(package: str, version: str) -> Path:
    """Fetch a release into the cache; nothing happens if it is there already.

    Raises:
        UsageError: no such release, a damaged wheel, no room, a cache that cannot be written.
        AdapterUnavailable: pip or the package index cannot be reached.
    """
    package = _distribution(package, version)
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
    """Fetch and unpack beside `final`, then rename; the lock is held."""
    prefix = f".partial-{version}-"
    for left_over in final.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        unpacked = work / "unpacked"
        wanted = functools.partial(is_wanted, unread=unread_folders(package))
        _unpack_release(f"{package}=={version}", work, unpacked, wanted)
        os.rename(unpacked, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack_release(requirement: str, work: Path, folder: Path, wanted: Wanted) -> None:
    """What is wanted of the wheel; if anything is wrong with its parts, the whole wheel decides."""
    near = _near_wheel(requirement, work, wanted)
    if near is not None:
        try:
            unpack(near, folder, requirement, wanted)
        except DamagedWheel:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return
    unpack(download(requirement, work), folder, requirement, wanted)


def _near_wheel(requirement: str, work: Path, wanted: Wanted) -> Path | None:
    """An archive with what is wanted, on this machine without the whole wheel being downloaded."""
    url = wheel_address(requirement, work)
    if url is None:
        return None
    if urlsplit(url).scheme == "file":
        return Path(url2pathname(urlsplit(url).path))
    try:
        fetch_parts(url, work / "parts", wanted)
    except PartsRefused:
        return None
    return work / "parts"
