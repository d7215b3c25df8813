"""`fuzzgraph mutants`: which one-line changes of an engine a target sees."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzgraph.cli.options import as_json, duration, say_json, setup_options, whole_number
from fuzzgraph.text.escaping import visible

if TYPE_CHECKING:
    from fuzzgraph.mutants import Mutant, Result
    from fuzzgraph.mutants.records import Ground
    from fuzzgraph.run.spec import Setup


@click.command()
@partial(setup_options, leave=("fault", "isolation", "sanitizer"))
@click.option(
    "--sample", metavar="N", default="40", show_default=True, callback=whole_number(0),
    help="Mutants to run that start; 0 only learns which lines the target executes.",
)  # fmt: skip
@click.option(
    "--seed", metavar="N", default="1", show_default=True, callback=whole_number(0),
    help="Same seed, same mutants and same cases.",
)  # fmt: skip
@click.option(
    "--seconds", metavar="TIME", default="6s", show_default=True, callback=duration,
    help="Processor time for each mutant.",
)  # fmt: skip
@click.option("--operators", metavar="NAME,...", default="", help="Kinds of changes. [all]")
@click.option("--modules", metavar="NAME,...", default="", help="Where in the engine. [everywhere]")
@click.option(
    "--jobs", metavar="N", callback=whole_number(1),
    help="Mutants at a time. [as many as this process has cores]",
)  # fmt: skip
@click.option(
    "--like", metavar="DIR", type=Path, help="Take the mutants of another run, not a sample."
)
@click.option(
    "--judgements", metavar="FILE", type=Path, help="What survivors are. [judgements.toml in --out]"
)
@click.option("--out", metavar="DIR", type=Path, required=True, help="Folder of log and report.")
@as_json
def mutants(
    setup: Setup,
    sample: int,
    seed: int,
    seconds: float,
    operators: str,
    modules: str,
    jobs: int | None,
    like: Path | None,
    judgements: Path | None,
    out: Path,
    as_json: bool,
) -> int:
    """Change an engine line by line, and see what a target notices.

    An interrupted measurement goes on where the same command is given again.

    Exit code 1 says that a mutant survived which nobody has judged equivalent or unreachable.
    """
    import fuzzgraph
    from fuzzgraph.mutants import Sought, report, run_mutants

    sought = Sought(
        setup=setup,
        seed=seed,
        sample=sample,
        seconds=seconds,
        operators=_names(operators),
        modules=_names(modules),
        fuzzgraph=fuzzgraph.__version__,
    )
    found = run_mutants(
        sought,
        out,
        jobs=jobs or _cores(),
        named=_mutants_of(like) if like is not None else (),
        judged=judgements,
        progress=lambda told: click.echo(_line(told), err=as_json),
    )
    code = 1 if found.holes or found.unjudged else 0
    if as_json:
        say_json({**report.record(found), "exit_code": code})
    else:
        click.echo(f"{report.headline(found)}\n{out / 'report.md'}")
    return code


def _mutants_of(folder: Path) -> tuple[Mutant, ...]:
    from fuzzgraph.errors import UsageError
    from fuzzgraph.mutants import log

    results = log.read(folder / log.NAME).results
    if not results:
        raise UsageError(
            f"--like={folder} has no {log.NAME} with results. Name the --out of a run."
        )
    return tuple(one.mutant for one in results.values())


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _line(told: Ground | Result) -> str:
    from fuzzgraph.mutants.records import Ground

    if isinstance(told, Ground):
        return (
            f"{told.candidates} changes of {told.lines} executed lines; the unchanged engine ran "
            f"{told.cases} cases and showed {len(told.findings)} findings"
        )
    one = told.mutant
    place = f"{one.module.rpartition('.')[2]}:{one.line} {one.operator}"
    said = f"{told.oracle} {told.buffer}" if told.outcome == "found" else told.said
    line = f"{told.outcome:<14} {told.seconds:>5.1f} s {told.cases:>4} cases  {place}  {said}"
    return visible(line)[:160]
