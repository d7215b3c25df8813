"""What a campaign needs of the thing that runs cases: in this process or in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fuzzgraph.case import Case
from fuzzgraph.finding import Finding


class VerdictLike(Protocol):
    """What running a case came to."""

    @property
    def findings(self) -> tuple[Finding, ...]: ...

    @property
    def steps(self) -> int: ...

    @property
    def skipped(self) -> str:
        """Why the target could not run the case; '' if it did."""
        ...

    @property
    def nondeterministic(self) -> bool: ...

    @property
    def fallbacks(self) -> Mapping[str, int]: ...

    @property
    def unchecked(self) -> Mapping[str, int]:
        """Why nobody looked at the accesses and races of Triton kernels -> their launches."""
        ...

    @property
    def unguarded(self) -> Mapping[str, int]:
        """Stage -> bytes that a device's allocator handed out in it and no guard covers."""
        ...

    @property
    def late_copies(self) -> Mapping[str, int]:
        """Line of the engine -> copies that it gave and that ran late."""
        ...

    @property
    def unrepeatable(self) -> int:
        """Steps whose late copies were not judged."""
        ...

    @property
    def branches(self) -> frozenset[str]:
        """Branches of the engine that the case took; empty unless they are traced."""
        ...


class Runner(Protocol):
    """Runs cases on one target."""

    def run_case(self, case: Case) -> VerdictLike: ...

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        """The finding with the rate at which it shows in fresh sessions."""
        ...
