"""`fuzzgraph gate`: what a change of an engine breaks and mends."""

from __future__ import annotations

import contextlib
import os
import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from fuzzgraph.cli.options import (
    as_json,
    duration,
    no_settings,
    option_of,
    say_json,
    whole_number,
)
from fuzzgraph.run.spec import OPTIONS
from fuzzgraph.text.escaping import visible

_SECONDS = 120.0
_MADE = (Path("reports/gates"), Path("reports"))
_ROW = {row.name: row for row in OPTIONS}


@click.command()
@click.option("--source", default=".", metavar="DIR", show_default=True,
              help="Checkout of the engine with the change, committed or not.")  # fmt: skip
@click.option("--base", required=True, metavar="REF",
              help="What the change is for, e.g. origin/main.")  # fmt: skip
@click.option("--target", "targets", multiple=True, metavar="TARGET",
              help="Run this one; may be given again.  [default: all that execute it]")  # fmt: skip
@click.option("--time", "seconds", metavar="TIME", callback=duration,
              help="How long to search in all, e.g. 90s, 10m.  [default: 2m]")  # fmt: skip
@option_of(_ROW["examples"], help="Generated cases of each target, at most.  [default: no limit]")
@option_of(_ROW["seed"])
@option_of(_ROW["corpus"])
@option_of(_ROW["ledger"])
@click.option("--jobs", metavar="N", callback=whole_number(1),
              help="Processes that record what targets run.  [default: one a core]")  # fmt: skip
@option_of(_ROW["out"], help="New or empty folder.  [default: reports/gates/TIME-SEED]")
@no_settings
@as_json
def gate(
    source: str,
    base: str,
    targets: tuple[str, ...],
    seconds: float | None,
    examples: int | None,
    seed: int | None,
    corpus: str | None,
    ledger: str | None,
    jobs: int | None,
    out: str | None,
    no_settings: bool,
    as_json: bool,
) -> int:
    """Judge a change of an engine by its base.

    Each case runs on the tree and on the commit where it left --base. What only the tree shows is
    a finding of the change: shrunk, and confirmed in fresh sessions of both. What both show stands
    and is not blamed on the change; what only the base shows is mended.
    """
    import sys

    from fuzzgraph.campaign import fresh_folder
    from fuzzgraph.gate.records import GateSpec
    from fuzzgraph.gate.run import run_gate
    from fuzzgraph.gate.write import write_gate
    from fuzzgraph.reporting import progress_on
    from fuzzgraph.run.settings_file import find_settings

    found = None if no_settings else find_settings(source)
    given: dict[str, Any] = {
        "seconds": seconds, "examples": examples, "seed": seed, "corpus": corpus,
        "ledger": ledger, "out": out,
    }  # fmt: skip
    if found is not None:
        given = found.below(given)
    drawn = given.get("seed")
    drawn = secrets.randbelow(1 << 31) if drawn is None else int(drawn)
    named = given.get("out")
    spec = GateSpec(
        source=source,
        base=base,
        targets=targets,
        among=found.targets if found else (),
        seconds=given.get("seconds") or _SECONDS,
        examples=given.get("examples"),
        seed=drawn,
        jobs=jobs or os.cpu_count() or 1,
        corpus=given.get("corpus") or "",
        ledger=given.get("ledger") or "",
        out=str(fresh_folder(Path(named) if named else None, drawn, Path("reports/gates"))),
        settings=str(found.path) if found else "",
    )
    stream = sys.stderr if as_json else sys.stdout

    def say(line: str) -> None:
        click.echo(line, file=stream)

    if found is not None:
        say(visible(found.words))
    try:
        with closing(progress_on(stream)) as progress:
            summary = run_gate(spec, say=say, emit=progress)
    except BaseException:
        _leave_no_empty_folder(Path(spec.out))
        raise
    write_gate(summary, Path(spec.out))
    if as_json:
        say_json(summary)
    else:
        from fuzzgraph.gate.report import text

        click.echo(f"\n{text(summary)}\n  report in {spec.out}")
    return summary.exit_code


def _leave_no_empty_folder(folder: Path) -> None:
    """Nothing of a call that was refused: not the folders that were made for it either."""
    for empty in (folder, *(parent for parent in folder.parents if parent in _MADE)):
        with contextlib.suppress(OSError):  # it holds something
            empty.rmdir()
