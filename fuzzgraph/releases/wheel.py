"""What of a wheel is kept, and how it leaves its archive: checked, and inside its folder.

The host code of an engine opens its own Python and the text beside it: tables of tuned kernels,
templates, the sources of what it compiles at run time. Its compiled code needs the GPU that is not
there, and is nine tenths of vLLM's wheels.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from fuzzgraph.errors import UsageError
from fuzzgraph.releases.wheel_parts import Wanted

__all__ = ["DamagedWheel", "is_wanted", "unpack"]

_COMPILED = frozenset(
    (".a", ".co", ".cubin", ".dll", ".dylib", ".fatbin", ".hsaco", ".o", ".ptx", ".pyc", ".pyd")
)
_SHARED = re.compile(r".+\.so(\.\d+)*", re.IGNORECASE)
"""Such as `_C.abi3.so` and `libnccl.so.2`."""
_PAGES = frozenset((".js", ".mjs", ".css", ".html", ".svg", ".png", ".jpg", ".jpeg", ".gif"))
"""Of web pages that servers and benchmarks show."""
_SOURCES = frozenset((".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hip", ".hpp", ".inl", ".s"))
_VENDORED = frozenset(("cccl", "cute", "cutlass"))
"""Folders of NVIDIA's header libraries, which only a compiler reads: 54 MB in vLLM 0.33.0, 48 MB in
FlashInfer 0.7.2."""
_LONGEST_SOURCE = 256 << 10
"""Bytes of a source that states what a compiled function takes: the longest of sglang 0.5.9 to
0.5.23 has 204,815. Longer ones are generated kernels, 127 MB of them in FlashInfer 0.7.2."""
_LONGEST = 8 << 20
"""Bytes of any other file; the longest table, in FlashInfer 0.7.2, has 5.7 MB. What is longer is a
program without a suffix (vllm-rs, 60 MB)."""
_MOST_BYTES = 4 << 30
"""Unpacked size beyond which an archive is refused; what is kept of a wheel has 20 to 80 MB."""

_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
_UNRECORDED = (".dist-info/RECORD", ".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")
_HASHES = ("sha256", "sha384", "sha512")
_CHUNK = 1 << 20
_BROKEN = (
    zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, csv.Error, struct.error,
    zlib.error,
)  # fmt: skip
"""What the standard library raises on archives and lists that nobody packed so."""


class DamagedWheel(UsageError):
    """A wheel that is not what its maker packed."""


def is_wanted(member: zipfile.ZipInfo, unread: tuple[str, ...] = ()) -> bool:
    """Whether an engine's host code may read a file of its wheel.

    Args:
        unread: folders of the wheel of which it reads nothing.

    >>> [is_wanted(zipfile.ZipInfo(f"engine/{name}")) for name in ("model.py", "_C.abi3.so")]
    [True, False]
    """
    path = PurePosixPath(member.filename)
    suffix = path.suffix.lower()
    if member.is_dir() or any(path.is_relative_to(folder) for folder in unread):
        return False
    if suffix == ".py":
        return True
    if suffix in _COMPILED or suffix in _PAGES or _SHARED.fullmatch(path.name):
        return False
    if suffix in _SOURCES:
        return member.file_size <= _LONGEST_SOURCE and _VENDORED.isdisjoint(path.parts)
    return member.file_size <= _LONGEST


def unpack(wheel: Path, folder: Path, requirement: str, wanted: Wanted = is_wanted) -> None:
    """Put what is wanted of a wheel into `folder`, each file as the wheel's RECORD has it.

    Args:
        wheel: an archive of which the unwanted parts may be missing.
        requirement: PACKAGE==VERSION, for messages.
        wanted: whether a file of it is wanted.

    Raises:
        DamagedWheel: a file does not match its checksum or its hash, or is not recorded.
        UsageError: it writes outside its folder, or is too large.
        OSError: no room, or a folder that cannot be written.

    Source of RECORD's form: the packaging specification "Binary distribution format".
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            kept = [member for member in archive.infolist() if wanted(member)]
            _check_members(archive.infolist(), requirement)
            _check_size(kept, folder, requirement)
            recorded = _recorded(archive)
            for member in kept:
                _extract(archive, member, folder, recorded)
    except _BROKEN as error:
        raise DamagedWheel(
            f"{requirement}: its wheel is damaged ({error}). Fetch it again; if it comes from "
            "FUZZGRAPH_WHEELS, replace it there."
        ) from None


def _check_members(members: list[zipfile.ZipInfo], requirement: str) -> None:
    """An archive is untrusted: it must not reach beyond its folder."""
    for member in members:
        path = PurePosixPath(member.filename)
        link = stat.S_ISLNK(member.external_attr >> 16)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or link:
            raise UsageError(
                f"{requirement}: the wheel holds {member.filename!r}, which would be written "
                "outside its folder. Do not use this wheel."
            )
        if member.flag_bits & 1 or member.compress_type not in (
            zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED,
        ):  # fmt: skip
            raise zipfile.BadZipFile(f"{member.filename!r} is encrypted or packed in no usual way")


def _check_size(wanted: list[zipfile.ZipInfo], folder: Path, requirement: str) -> None:
    """Nor may it fill the disk."""
    size = sum(member.file_size for member in wanted)
    if size > _MOST_BYTES:
        raise UsageError(
            f"{requirement}: the wheel unpacks to {size} bytes, more than {_MOST_BYTES}. "
            "Do not use this wheel."
        )
    if size > shutil.disk_usage(folder.parent).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _recorded(archive: zipfile.ZipFile) -> dict[str, str]:
    """Files of the wheel -> 'sha256=...', as its RECORD says."""
    found = [member for member in archive.infolist() if _RECORD.fullmatch(member.filename)]
    if len(found) != 1 or found[0].file_size > _LONGEST:
        raise zipfile.BadZipFile(f"it has {len(found)} lists of its files, or a huge one")
    rows = csv.reader(io.StringIO(archive.read(found[0]).decode()))
    return {row[0]: row[1] for row in rows if len(row) > 1}


def _extract(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path, recorded: Mapping[str, str]
) -> None:
    """Write one file; zipfile compares its checksum when it has read the last byte."""
    name = member.filename
    algorithm, _, wanted = recorded.get(name, "").partition("=")
    unrecorded = name.endswith(_UNRECORDED)
    if not unrecorded and algorithm not in _HASHES:
        raise zipfile.BadZipFile(f"RECORD has no {' or '.join(_HASHES)} of {name!r}")
    digest = hashlib.new("sha256" if unrecorded else algorithm)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as packed, path.open("wb") as file:
        while chunk := packed.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    found = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
    if not unrecorded and found != wanted:
        raise zipfile.BadZipFile(f"{name!r} does not match its {algorithm} in RECORD")
