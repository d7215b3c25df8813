"""`fuzzgraph replay`, `shrink` and `export`: verbs that take one case."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fuzzgraph.case import Case, digest, load_case
from fuzzgraph.cli.options import (
    as_json,
    case_argument,
    case_folders,
    case_options,
    one_of,
    say_json,
    whole_number,
)
from fuzzgraph.corpus import find, readable_json, write_atomically
from fuzzgraph.errors import UNREADABLE, NotExecuted, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.run.environment import Environment
from fuzzgraph.run.events import Export, ExportKind, ReportedFinding, Setup, finding_id
from fuzzgraph.strict_json import decode_json
from fuzzgraph.text.numbers import counted

if TYPE_CHECKING:
    from fuzzgraph.campaign import Opened
    from fuzzgraph.run.runner import VerdictLike


def _load(name: str) -> tuple[Path, Case]:
    path = find(name, case_folders())
    return path, load_case(path)


def _found_with(path: Path, setup: Setup) -> list[str]:
    """A line on how the finding beside a case was found, where that was with other options."""
    from fuzzgraph.repro.wording import plain
    from fuzzgraph.run_options import replay_command

    beside = path.parent / "finding.json"
    try:
        reported = decode_json(beside.read_bytes(), ReportedFinding)
    except (OSError, *UNREADABLE):
        return []
    if reported.replay == replay_command(reported.case_path, setup):
        return []
    return [f"the finding beside it was found with: {plain(reported.replay)}"]


def _judged(opened: Opened, path: Path, case: Case) -> VerdictLike:
    """Run the case; one that the target cannot express is a wrong call."""
    verdict = opened.runner.run_case(case)
    if verdict.skipped:
        raise UsageError(
            f"{path}: target {opened.setup.target!r} cannot run it: {verdict.skipped}. "
            "Use another --target, or change the case."
        )
    return verdict


def _told(opened: Opened, path: Path, case: Case, verdict: VerdictLike) -> list[Finding]:
    """What the case shows, as a campaign tells it: the worst first, but before all others the one
    that its folder is named by."""
    from fuzzgraph.campaign.effect import with_effects

    found = with_effects(case, verdict.findings, opened.runner)
    return sorted(found, key=lambda one: finding_id(one.key) != path.absolute().parent.name)


def _sure(opened: Opened, case: Case, finding: Finding, times: int = 3) -> Finding:
    """The finding with its rate in fresh sessions and the engine's lines."""
    return opened.located(case, opened.runner.confirm(case, finding, times))


def _reported(setup: Setup, path: Path, case: Case, finding: Finding) -> ReportedFinding:
    from fuzzgraph.run_options import replay_command

    return ReportedFinding(
        id=finding_id(finding.key),
        finding=finding,
        case=case,
        digest=digest(case),
        case_path=str(path),
        replay=replay_command(str(path), setup),
    )


@click.command()
@case_argument
@case_options
@click.option(
    "--times",
    metavar="N",
    default="3",
    show_default=True,
    callback=whole_number(1),
    help="Fresh sessions in which a finding is confirmed.",
)
@as_json
def replay(case: str, setup: Setup, times: int, as_json: bool) -> int:
    """Run one case and say what it shows. CASE is a file, or the first digits of a digest."""
    from fuzzgraph.campaign import open_setup

    path, loaded = _load(case)
    with closing(open_setup(setup)) as opened:
        verdict = _judged(opened, path, loaded)
        found = _told(opened, path, loaded, verdict)
        confirmed = [_sure(opened, loaded, seen, times) for seen in found[:1]]
    found = [*confirmed, *found[1:]]
    if as_json:
        say_json(_replayed(setup, path, loaded, verdict, found))
    else:
        click.echo(_replay_text(setup, path, loaded, verdict, found, opened.environment))
    return 1 if found else 0


def _replayed(
    setup: Setup, path: Path, case: Case, verdict: VerdictLike, found: list[Finding]
) -> dict[str, Any]:
    return {
        "case": str(path),
        "digest": digest(case),
        "setup": setup,
        "steps": verdict.steps,
        "nondeterministic": verdict.nondeterministic,
        "unchecked": verdict.unchecked,
        "unguarded": verdict.unguarded,
        "late_copies": verdict.late_copies,
        "unrepeatable": verdict.unrepeatable,
        "findings": found,
        "exit_code": 1 if found else 0,
    }


def _replay_text(
    setup: Setup,
    path: Path,
    case: Case,
    verdict: VerdictLike,
    found: list[Finding],
    environment: Environment,
) -> str:
    from fuzzgraph.reporting import (
        finding_text,
        not_overlapped,
        overlapped,
        setup_line,
        unchecked,
        unguarded,
    )
    from fuzzgraph.text.case_text import case_table, config_line

    if found:
        reported = _reported(setup, path, case, found[0])
        return finding_text(msgspec.structs.replace(reported, also=tuple(found[1:])), environment)
    table = "\n".join(f"  {line}".rstrip() for line in case_table(case))
    late = verdict.late_copies, verdict.unrepeatable
    notes = unchecked(verdict.unchecked) + not_overlapped(setup, *late)
    notes += overlapped(verdict.late_copies) + unguarded(verdict.unguarded)
    notes += _found_with(path, setup)
    return (
        f"nothing found in {path}, {counted(verdict.steps, 'step')} on {setup_line(setup)}\n\n"
        f"{table}\n\n"
        f"  config: {config_line(case.config)}" + "".join(f"\n  {line}" for line in notes)
    )


@click.command()
@case_argument
@case_options
@click.option("--finding", default="", help="Which finding to keep: its id or oracle. [the worst]")
@click.option("--out", type=Path, help="File of the shrunk case. [DIGEST.json beside CASE]")
@as_json
def shrink(case: str, setup: Setup, finding: str, out: Path | None, as_json: bool) -> int:
    """Make a case smaller while it shows the same finding."""
    from fuzzgraph.campaign import open_setup

    path, loaded = _load(case)
    with closing(open_setup(setup)) as opened:
        verdict = _judged(opened, path, loaded)
        if not verdict.findings:
            return _nothing(path, setup, as_json=as_json)
        kept = _chosen(_told(opened, path, loaded, verdict), finding)
        small, tries = _minimised(opened, loaded, kept)
        shown = _told(opened, path, small, opened.runner.run_case(small))
        final = _sure(opened, small, next(one for one in shown if one.key == kept.key))
    target = out or path.parent / f"{digest(small)}.json"
    write_atomically(target, readable_json(small))
    reported = msgspec.structs.replace(_reported(setup, target, small, final), shrink_tries=tries)
    if as_json:
        say_json({"before": digest(loaded), "tries": tries, "finding": reported, "exit_code": 1})
    else:
        _say_finding(reported, opened.environment)
    return 1


def _say_finding(reported: ReportedFinding, environment: Environment) -> None:
    from fuzzgraph.reporting import finding_text

    click.echo(finding_text(reported, environment))


def _nothing(path: Path, setup: Setup, *, as_json: bool) -> int:
    if as_json:
        say_json({"case": str(path), "setup": setup, "finding": None, "exit_code": 0})
    else:
        said = f"nothing found in {path} on target {setup.target}, so there is nothing to do"
        click.echo("\n".join([said, *_found_with(path, setup)]))
    return 0


def _chosen(findings: list[Finding], wanted: str) -> Finding:
    for finding in findings:
        if wanted in ("", finding.oracle, finding_id(finding.key)):
            return finding
    shown = ", ".join(finding_id(finding.key) for finding in findings)
    raise UsageError(f"finding={wanted!r} does not show in this case. It shows: {shown}.")


def _minimised(opened: Opened, case: Case, kept: Finding) -> tuple[Case, int]:
    from fuzzgraph.campaign import smallest
    from fuzzgraph.errors import InvalidCase
    from fuzzgraph.strategies import minimise

    tries = 0

    def still_fails(candidate: Case) -> bool:
        nonlocal tries
        tries += 1
        try:
            findings = opened.runner.run_case(candidate).findings
        except InvalidCase:
            return False
        return any(seen.key == kept.key for seen in findings)

    return smallest(case, still_fails, minimise, opened.unserved), tries


@click.command()
@case_argument
@click.option(
    "--as",
    "kind",
    metavar="[script|pytest|issue]",
    callback=one_of("script", "pytest", "issue"),
    required=True,
    help="A script that needs no FuzzGraph, a pytest file, or the text of an issue.",
)
@case_options
@click.option("--finding", default="", help="Which finding to show: its id or oracle. [the worst]")
@click.option("--out", type=Path, help="File to write. [stdout]")
@click.option("--verify/--no-verify", default=True, help="Execute it three times. [with --out]")
@as_json
def export(
    case: str,
    kind: ExportKind,
    setup: Setup,
    finding: str,
    out: Path | None,
    verify: bool,
    as_json: bool,
) -> int:
    """Turn a case into a script, a test or an issue.

    It is run first, and has to show a finding.
    """
    from fuzzgraph.campaign import open_setup
    from fuzzgraph.campaign.export import export_text, verified_rate

    path, loaded = _load(case)
    with closing(open_setup(setup)) as opened:
        verdict = _judged(opened, path, loaded)
        if not verdict.findings:
            return _nothing(path, setup, as_json=as_json)
        shown = _sure(opened, loaded, _chosen(_told(opened, path, loaded, verdict), finding))
        text = export_text(
            kind, loaded, shown, setup, record=opened.record, environment=opened.environment
        )
    exported = Export(kind=kind, path=str(out or ""))
    if out is not None:
        write_atomically(out, text.encode())
        try:
            rate = verified_rate(kind, out) if verify else ""
            exported = msgspec.structs.replace(exported, rate=rate)
        except NotExecuted as error:
            exported = msgspec.structs.replace(exported, error=str(error))
    _say_export(exported, text, shown, as_json=as_json)
    return 1


def _say_export(exported: Export, text: str, shown: Finding, *, as_json: bool) -> None:
    if as_json:
        record = {**msgspec.structs.asdict(exported), "finding": shown, "exit_code": 1}
        say_json(record if exported.path else {**record, "text": text})
    elif not exported.path:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        rate = f"fails {exported.rate} when executed" if exported.rate else exported.error
        click.echo(f"{exported.kind} written to {exported.path}" + (f", {rate}" if rate else ""))
