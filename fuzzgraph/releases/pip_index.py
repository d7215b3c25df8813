"""What pip knows of a release: its versions, where its wheel lies, and the wheel itself.

pip is asked, because the user's settings of indexes, mirrors, certificates and proxies are its own.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from fuzzgraph.errors import UNREADABLE, AdapterUnavailable, UsageError
from fuzzgraph.strict_json import decode_json

__all__ = ["download", "index_versions", "tells_addresses", "wheel_address"]

_DRY_SINCE = (25, 3)
"""The first pip that ends a dry run without downloading the wheel."""


class _Archive(msgspec.Struct, frozen=True):
    url: str


class _Item(msgspec.Struct, frozen=True):
    download_info: _Archive


class _Report(msgspec.Struct, frozen=True):
    """What is needed of pip's installation report, version 1."""

    version: str
    install: list[_Item]


def index_versions(package: str) -> set[str]:
    """Versions that the index has, without pre-releases; empty where it cannot be asked."""
    done = _pip("index", "versions", package)
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    return {each.strip() for each in listed[1].split(",")} if listed else set()


def wheel_address(requirement: str, folder: Path) -> str | None:
    """URL of the wheel that pip would install, without fetching it.

    Args:
        folder: an empty one to write into.

    Returns:
        None where pip cannot tell, or not without fetching it.

    Raises:
        UsageError, AdapterUnavailable: there is no such release, or nobody to ask.
    """
    if not tells_addresses():
        return None
    report = folder / "report.json"
    done = _pip(
        "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
        "--only-binary", ":all:",
        # Metadata by ranges from an index that has none beside its wheels; else all is fetched.
        "--use-feature", "fast-deps", "--report", str(report), requirement,
    )  # fmt: skip
    if done.returncode:
        refused = _known_refusal(requirement, done.stderr)
        if refused is not None:
            raise refused
        return None
    try:
        said = decode_json(report.read_bytes(), _Report)
    except (FileNotFoundError, *UNREADABLE):
        return None
    usable = said.version == "1" and len(said.install) == 1
    return said.install[0].download_info.url if usable else None


def download(requirement: str, folder: Path) -> Path:
    """The whole wheel of a release, in `folder`.

    Raises:
        UsageError, AdapterUnavailable: as `wheel_address`, and whatever else pip says.
        OSError: no room.
    """
    done = _pip(
        "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder),
        requirement,
    )  # fmt: skip
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise _known_refusal(requirement, done.stderr) or UsageError(
            f"{requirement} cannot be fetched from {_source()}: {last}"
        )
    return found[0]


def tells_addresses() -> bool:
    """Whether this Python's pip says where a wheel lies without downloading it."""
    try:
        found = version("pip")
    except PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", found)[:2]) >= _DRY_SINCE


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The pip of this Python."""
    wheels = os.environ.get("FUZZGRAPH_WHEELS")
    source = ["--no-index", "--find-links", wheels] if wheels else []
    command = [
        sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input",
        *source,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _source() -> str:
    wheels = os.environ.get("FUZZGRAPH_WHEELS")
    return f"FUZZGRAPH_WHEELS={wheels!r}" if wheels else "the package index"


def _known_refusal(requirement: str, said: str) -> UsageError | None:
    """The error that says what pip's failure means; None for one that is not known.

    Raises:
        OSError: no room.
    """
    where = _source()
    if "No space left on device" in said:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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
    return None


def _known_versions(said: str) -> str:
    """The newest versions that pip listed."""
    listed = re.search(r"from versions: ([^)]+)\)", said)
    if listed is None or listed[1].strip() == "none":
        return ""
    return " Known releases, newest last: " + ", ".join(listed[1].split(", ")[-8:]) + "."
