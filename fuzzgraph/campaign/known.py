"""Tells a finding that is new from one that a reported finding already explains.

One bug often breaks several clauses at once. The finding whose case was shrunk is the primary
one; what else the shrunk case breaks are its companions. A companion is explained only where
the primary shows too, so that a second bug with the same look is not swallowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fuzzgraph.finding import Finding, FindingKey

__all__ = ["Companions", "Known"]

Companions = Callable[[FindingKey], "frozenset[FindingKey] | None"]
"""What another shard found beside a finding of its own; None while it is at work."""


class Known:
    """Findings reported so far, by this shard or another one."""

    def __init__(self, companions_elsewhere: Companions) -> None:
        self._companions: dict[FindingKey, frozenset[FindingKey]] = {}
        self._elsewhere: set[FindingKey] = set()
        self._look_up = companions_elsewhere

    def report(self, key: FindingKey, companions: Iterable[FindingKey]) -> None:
        self._companions[key] = frozenset(companions)

    def leave(self, key: FindingKey) -> None:
        """Another shard works on it."""
        self._elsewhere.add(key)

    def primaries(self, findings: Iterable[Finding]) -> set[FindingKey]:
        """Which reported findings show here."""
        known = self._companions.keys() | self._elsewhere
        return {finding.key for finding in findings} & known

    def fresh(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those that nothing reported explains, one per key, in the order given."""
        findings = list(findings)
        explained: set[FindingKey] = set()
        for key in self.primaries(findings):
            companions = self._companions_of(key)
            if companions is None:  # its shard is still at work: what shows beside it may be one
                return []
            explained |= {key} | companions
        fresh: dict[FindingKey, Finding] = {}
        for finding in findings:
            if finding.key not in explained:
                fresh.setdefault(finding.key, finding)
        return list(fresh.values())

    def _companions_of(self, key: FindingKey) -> frozenset[FindingKey] | None:
        found = self._companions.get(key)
        if found is None:
            found = self._look_up(key)
            if found is not None:
                self._companions[key] = found
        return found
