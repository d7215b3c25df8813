"""`fuzzgraph check-target`: what to know of a target before its findings are believed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from fuzzgraph.cli.options import as_json, say_json, setup_options, whole_number
from fuzzgraph.text.numbers import counted

if TYPE_CHECKING:
    from fuzzgraph.run.events import Setup
    from fuzzgraph.target_report import HiddenTensor, TargetReport


@click.command("check-target")
@click.argument("target", metavar="NAME|MODULE:FACTORY")
@partial(setup_options, leave=("target", "sanitizer"))
@click.option(
    "--examples",
    metavar="N",
    default="8",
    show_default=True,
    callback=whole_number(1),
    help="Generated cases, each run twice.",
)
@click.option(
    "--seed",
    metavar="N",
    default="0",
    show_default=True,
    callback=whole_number(0),
    help="Same seed, same cases.",
)
@as_json
def check_target(setup: Setup, examples: int, seed: int, as_json: bool) -> int:
    """Check a target before you believe its findings.

    Its protocol, its pools, that it agrees with itself, what it shows and costs.

    Exit code 1 where something speaks against believing it, 3 where the target itself fails.
    """
    from fuzzgraph.api import check_target as checked

    report = checked(setup, examples, seed)
    if as_json:
        say_json(report)
    else:
        click.echo("\n".join([*_lines(report), *_way_to_cases(report, setup)]))
    return report.exit_code


def _lines(report: TargetReport) -> Iterator[str]:
    yield f"{report.target}: {report.cases} cases run twice, {report.steps} steps"
    for why, count in report.skipped.items():
        yield f"  skipped {count}: {why}"
    yield from _shown_lines(report)
    yield from _hidden_lines(report)
    for excuse, steps in report.excuses.items():
        yield f"  excused in {counted(steps, 'step')}: {excuse}"
    cost = report.cost
    yield (
        f"  cost: {cost.open_ms:.1f} ms to open, {cost.capture_ms:.1f} of them to capture; "
        f"{cost.step_ms:.2f} ms a step, {cost.judged_step_ms:.1f} with all that judges it"
    )
    for problem in report.problems:
        yield f"  PROBLEM {problem}"
    if not report.problems:
        yield "  no problem found"


def _way_to_cases(report: TargetReport, setup: Setup) -> Iterator[str]:
    """What shrinks the findings, and writes their cases and scripts."""
    if report.findings:
        from fuzzgraph.run.spec import SETUP_OPTIONS
        from fuzzgraph.run_options import option_words

        command = shlex.join(["fuzzgraph", "run", *option_words(setup, SETUP_OPTIONS)])
        yield f"  for the cases of findings, made smaller, and their scripts: {command}"


def _shown_lines(report: TargetReport) -> Iterator[str]:
    for mode, names in report.outputs.items():
        yield f"  outputs judged in {mode}: {', '.join(names) or 'none, metadata alone is judged'}"
    yield f"  fields shown: {', '.join(report.shown) or 'none'}"
    if report.never_shown:
        yield f"  fields declared and never shown: {', '.join(report.never_shown)}"


def _hidden_lines(report: TargetReport) -> Iterator[str]:
    if not report.seen:
        yield "  a device does not tell which memory its graphs read; check with --graphs recorder"
        return
    if not report.graphs:
        yield "  captures no graph, so that what its kernels read is not seen"
        return
    changing = [tensor for tensor in report.hidden if tensor.changes or not tensor.allocated_at]
    for tensor in changing:
        yield f"  read by graphs and declared by no field: {_tensor(tensor)}"
    constant = len(report.hidden) - len(changing)
    yield f"  read by graphs and never changing (weights and the like): {constant} allocations"


def _tensor(tensor: HiddenTensor) -> str:
    where = f"allocated at {tensor.allocated_at}" if tensor.allocated_at else "outside the guard"
    return f"{tensor.name or 'unnamed'} {tensor.dtype}{list(tensor.shape)}, {where}"
