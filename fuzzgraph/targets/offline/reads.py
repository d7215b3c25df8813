"""Which attributes of records an engine reads: what nobody reads need not be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fuzzgraph.handover import DEEPEST, records_in
from fuzzgraph.relays import relay

__all__ = ["ReadWatch"]

_WHOLE = frozenset({"__dict__", "__getstate__"})
"""Who reads one of these may read any attribute: `vars` and copies of a record begin with it."""


class ReadWatch:
    """Notes which attributes of records are read while it is entered.

    A class that is not Python's own is asked through its `__getattribute__`, which is replaced as
    long as the watch is entered. Records whose class allows none count as read throughout.
    """

    def __init__(self) -> None:
        self._paths: dict[int, list[str]] = {}
        """Identity of each record -> the paths by which it was handed over."""
        self._records: list[object] = []
        """They themselves, so that no other object gets the identity of one."""
        self._read: set[tuple[str, str]] = set()
        self._replaced: list[tuple[type, Any]] = []

    def add(self, path: str, record: object, depth: int = 0) -> None:
        """Watch this record, and the records in it."""
        self._paths.setdefault(id(record), []).append(path)
        self._records.append(record)
        if depth < DEEPEST:
            for name, value in records_in(getattr(record, "__dict__", {})).items():
                self.add(f"{path}.{name}", value, depth + 1)

    def __enter__(self) -> None:
        for kind in set(map(type, self._records)):
            try:
                self._replace(kind)
            except TypeError:  # a type of Python's own, such as SimpleNamespace
                for record in self._records:
                    if type(record) is kind:
                        self._note(record, "__dict__")

    def __exit__(self, *error: object) -> None:
        while self._replaced:
            kind, own = self._replaced.pop()
            if own is None:
                delattr(kind, "__getattribute__")
            else:
                setattr(kind, "__getattribute__", own)  # noqa: B010

    def unread(self, to: str, paths: Iterable[str]) -> frozenset[str]:
        """Those of the paths below `to` that name an attribute of a watched record, unread."""
        whole = {record for record, name in self._read if name in _WHOLE}
        asked = {path for paths in self._paths.values() for path in paths} - whole
        found = []
        for path in paths:
            record, _, name = f"{to}.{path}".rpartition(".")
            if record in asked and (record, name) not in self._read:
                found.append(path)
        return frozenset(found)

    def _replace(self, kind: type) -> None:
        own, plain = vars(kind).get("__getattribute__"), getattr(kind, "__getattribute__")  # noqa: B009
        setattr(kind, "__getattribute__", self._noting(plain))  # noqa: B010
        self._replaced.append((kind, own))

    def _noting(self, plain: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        @relay
        def __getattribute__(record: Any, name: str) -> Any:
            self._note(record, name)
            return plain(record, name)

        return __getattribute__

    def _note(self, record: object, name: str) -> None:
        self._read.update((path, name) for path in self._paths.get(id(record), ()))
