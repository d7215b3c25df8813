"""A runner of cases that has the tool look at them as well."""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.errors import FuzzGraphError, OutOfTime
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.run.runner import Runner, VerdictLike
from fuzzgraph.worker.sanitizer.check import Checked, Sanitizer
from fuzzgraph.worker.sanitizer.findings import ORACLE, findings_of


class SanitizingRunner:
    """Runs cases as another runner does, and those that it finds nothing in under the tool as well.

    What the tool reports of the engine's kernels is a finding then.
    """

    def __init__(self, runner: Runner, sanitizer: Sanitizer, target: str) -> None:
        self._runner = runner
        self._sanitizer = sanitizer
        self._target = target

    def run_case(self, case: Case) -> VerdictLike:
        """The verdict of the other runner, with what the tool finds where it has none.

        Raises:
            SanitizerFailed, OutOfTime: as `Sanitizer.check`; and as the other runner.
        """
        verdict = self._runner.run_case(case)
        if verdict.findings or verdict.skipped:
            return verdict
        checked = self._sanitizer.check(case)
        _say_ours(checked)
        found = findings_of(checked, case, self._target)
        return _with_findings(verdict, case, self._target, found)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        """As the other runner; what the tool alone sees is run under it as often."""
        if finding.oracle != ORACLE:
            return self._runner.confirm(case, finding, times)
        seen = sum(
            finding.key in {one.key for one in self.run_case(case).findings} for _ in range(times)
        )
        return msgspec.structs.replace(finding, confirmed=f"{seen}/{times}")

    def beside(self, case: Case, finding: Finding) -> Finding:
        """A finding with what the tool reports of its case.

        Raises:
            OutOfTime: it was cut off.
        """
        try:
            checked = self._sanitizer.check(case)
        except OutOfTime:
            raise
        except FuzzGraphError as error:  # of no report is this the end
            print(f"no report of compute-sanitizer: {error}", file=sys.stderr)
            return finding
        _say_ours(checked)
        return msgspec.structs.replace(finding, kernel_errors=checked.errors)


def _say_ours(checked: Checked) -> None:
    for error in checked.ours:
        print(
            f"{error.tool} reports an error in FuzzGraph's own work, which says nothing about the "
            f"engine. Please report it: {error}",
            file=sys.stderr,
        )


def _with_findings(
    verdict: VerdictLike, case: Case, target: str, found: tuple[Finding, ...]
) -> VerdictLike:
    if not found:
        return verdict
    if isinstance(verdict, Verdict):
        return replace(verdict, findings=found)
    return Verdict(case, target, found, verdict.steps)
