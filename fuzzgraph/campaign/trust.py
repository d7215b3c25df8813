"""What the log of a run may not decide by itself: which module is imported, and which database
is reached.

The folder of a run may come from anybody. Whoever resumes it names these again.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from fuzzgraph.errors import UsageError
from fuzzgraph.run_spec import RunSpec

__all__ = ["Named"]


@dataclass(frozen=True, slots=True)
class Named:
    """What the caller of a resume has named; None for what they have not."""

    target: str | None = None
    database: str | None = None

    def words(self) -> list[str]:
        """The same as options of a command line."""
        given = (("--target", self.target), ("--database", self.database))
        return [word for option, value in given if value is not None for word in (option, value)]

    def check(self, out: Path, spec: RunSpec) -> None:
        """Refuse what the log of the run asks for and the caller has not named.

        Raises:
            UsageError: a module:factory or a database that is not named, or another one is.
        """
        target, database = spec.setup.target, spec.database
        code = target if ":" in target else ""
        self._check(out, "--target", self.target, target, code, "is code to import and run")
        self._check(out, "--database", self.database, database, database, "is written to")

    def _check(
        self, out: Path, option: str, named: str | None, told: str, risky: str, why: str
    ) -> None:
        if named is not None and named != told:
            raise UsageError(
                f"{option}={named!r}: the run in {out} has {told!r}. Name that, or leave it out."
            )
        if named is None and risky:
            raise UsageError(
                f"{out}: its log asks for {told!r}, which {why}. If you trust it, name it again: "
                f"{option} {shlex.quote(told)}"
            )
