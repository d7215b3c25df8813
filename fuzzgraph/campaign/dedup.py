"""Tells a finding that is new from one that a reported finding already explains.

One bug often breaks several clauses at once. The finding whose case was shrunk is the primary
one; what else the shrunk case breaks are its companions, and so is what another oracle says of the
same buffer in the same kind of step. A companion is explained only where the primary shows too, so
that a second bug with the same look is not swallowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from fuzzgraph.finding import Finding, FindingKey
from fuzzgraph.run.events import finding_id
from fuzzgraph.run.state import RunState

Companions = Callable[[FindingKey], "frozenset[FindingKey] | None"]
"""What another shard found beside a finding of its own; None while it is at work."""


class Deduplicator:
    """Knows the findings of this shard from the state of the run, and those that others claimed.

    Args:
        elsewhere: looks up the companions of a finding of another shard.
    """

    def __init__(self, state: RunState, elsewhere: Companions) -> None:
        self._state = state
        self._elsewhere = elsewhere
        self._others: dict[FindingKey, frozenset[FindingKey] | None] = {}

    def leave_to_other(self, key: FindingKey) -> None:
        """Another shard has claimed the finding."""
        self._others[key] = None

    def primaries(self, findings: Iterable[Finding]) -> tuple[FindingKey, ...]:
        """Which of these findings are known already, in the order given."""
        return tuple(dict.fromkeys(one.key for one in findings if self._is_known(one.key)))

    def unresolved(self, findings: Iterable[Finding]) -> bool:
        """Whether one of them may yet turn out to explain the others: it is not shrunk."""
        return any(self._companions(key) is None for key in self.primaries(findings))

    def fresh(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those that no known finding explains so far, one per key, in the order given."""
        findings = list(findings)
        explained: set[FindingKey] = set()
        places: set[tuple[str, str]] = set()
        for key in self.primaries(findings):
            explained |= {key} | (self._companions(key) or frozenset())
            places.add(_place(key))
        fresh: dict[FindingKey, Finding] = {}
        for finding in findings:
            if finding.key not in explained and _place(finding.key) not in places:
                fresh.setdefault(finding.key, finding)
        return list(fresh.values())

    def _is_known(self, key: FindingKey) -> bool:
        return key in self._others or _id(key) in self._state.findings

    def _companions(self, key: FindingKey) -> frozenset[FindingKey] | None:
        if key in self._others:
            if self._others[key] is None:
                self._others[key] = self._elsewhere(key)
            return self._others[key]
        if _id(key) in self._state.unfinished:
            return None
        return frozenset(other.key for other in self._state.findings[_id(key)].also)


_id = lru_cache(maxsize=1024)(finding_id)
"""Asked for every finding of every failing case, and a hash each time."""


def _place(key: FindingKey) -> tuple[str, str]:
    """Buffer and kind of step; findings without a buffer share a place with none but their like."""
    oracle, _, _, buffer, mode = key
    return (buffer or oracle, mode)
