"""The ports that servers of ours listen on, and waiting until they are free again.

A server derives ports of its own (a Ray node opens a dozen), and a port stays taken for a moment
after its owner has ended: whoever starts the next one too soon meets the last one's remains.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from sys import byteorder

_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def descendants(pid: int) -> set[int]:
    """A process and everything it started that still descends from it."""
    parents = dict(_parents())
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


def _parents() -> Iterable[tuple[int, int]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            yield int(entry.name), int(fields[1])


def listening(pids: Iterable[int], *, beyond_loopback: bool = False) -> frozenset[int]:
    """TCP ports on which these processes listen now.

    Args:
        beyond_loopback: only those that other machines can reach.
    """
    sockets = {inode for pid in pids for inode in _sockets(pid)}
    return frozenset(
        port
        for address, port, inode in _listeners()
        if inode in sockets and not (beyond_loopback and _is_loopback(address))
    )


def _sockets(pid: int) -> Iterable[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(entry.path)
                if name.startswith("socket:["):
                    yield name[len("socket:[") : -1]


def _is_loopback(address: str) -> bool:
    """Of an address as the table has it: words of four bytes in hex, in this machine's order."""
    raw = bytes.fromhex(address)
    words = [raw[at : at + 4] for at in range(0, len(raw), 4)]
    found = ip_address(b"".join(word[::-1] if byteorder == "little" else word for word in words))
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def _listeners() -> Iterable[tuple[str, int, str]]:
    """Address, port and inode of every socket of this machine that listens."""
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN:
                    address, _, port = fields[1].rpartition(":")
                    yield address, int(port, 16), fields[9]


def _taken() -> Iterable[int]:
    return [port for _, port, _ in _listeners()]


def wait_until_free(
    ports: Iterable[int],
    seconds: float = 15.0,
    *,
    taken: Callable[[], Iterable[int]] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> frozenset[int]:
    """Wait, with a bound, until nothing listens on these ports; warns of those still taken.

    Args:
        taken: every port that is listened on now.
    """
    ports = frozenset(ports)
    end = time.monotonic() + seconds
    while left := ports & frozenset((taken or _taken)()):
        if time.monotonic() >= end:
            names = ", ".join(map(str, sorted(left)))
            warnings.warn(
                f"after {seconds:g} s something still listens on port {names}; a server that is "
                "started now may not get its ports",
                RuntimeWarning,
                stacklevel=2,
            )
            break
        pause(0.05)
    return left
