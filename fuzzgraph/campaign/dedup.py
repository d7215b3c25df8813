"""Tells a finding that is new from one that a reported finding already explains.

One bug often breaks several clauses at once. The finding whose case was shrunk is the primary
one; what else the shrunk case breaks are its companions, and so is what another oracle says of the
same buffer in the same kind of step. A companion is explained only where the primary shows too, so
that a second bug with the same look is not swallowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fuzzgraph.finding import Finding, FindingKey

__all__ = ["Companions", "Deduplicator"]

Companions = Callable[[FindingKey], "frozenset[FindingKey] | None"]
"""What another shard found beside a finding of its own; None while it is at work."""


class Deduplicator:
    """Findings taken up so far, by this shard or another one."""

    def __init__(self, companions_elsewhere: Companions) -> None:
        self._companions: dict[FindingKey, frozenset[FindingKey]] = {}
        self._open: set[FindingKey] = set()
        self._look_up = companions_elsewhere

    def take_up(self, key: FindingKey) -> None:
        """Somebody works on it; what it explains is not known yet."""
        self._open.add(key)

    def report(self, key: FindingKey, companions: Iterable[FindingKey]) -> None:
        """It is shrunk: what else its case breaks is known."""
        self._open.discard(key)
        self._companions[key] = frozenset(companions)

    def primaries(self, findings: Iterable[Finding]) -> tuple[FindingKey, ...]:
        """Which of the findings taken up show here, in the order given."""
        taken = self._companions.keys() | self._open
        return tuple(dict.fromkeys(one.key for one in findings if one.key in taken))

    def unresolved(self, findings: Iterable[Finding]) -> bool:
        """Whether a finding shows here that may yet turn out to explain the others."""
        return any(self._companions_of(key) is None for key in self.primaries(findings))

    def fresh(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those that no finding taken up explains so far, one per key, in the order given."""
        findings = list(findings)
        explained: set[FindingKey] = set()
        places: set[tuple[str, str]] = set()
        for key in self.primaries(findings):
            explained |= {key} | (self._companions_of(key) or frozenset())
            places.add(_place(key))
        fresh: dict[FindingKey, Finding] = {}
        for finding in findings:
            if finding.key not in explained and _place(finding.key) not in places:
                fresh.setdefault(finding.key, finding)
        return list(fresh.values())

    def _companions_of(self, key: FindingKey) -> frozenset[FindingKey] | None:
        found = self._companions.get(key)
        if found is None and (found := self._look_up(key)) is not None:
            self.report(key, found)
        return found


def _place(key: FindingKey) -> tuple[str, str]:
    """Buffer and kind of step; a finding without a buffer is in no place but its own."""
    oracle, _, _, buffer, mode = key
    return (buffer or oracle, mode)
