"""`fuzzgraph faults`: the planted faults, and how soon each is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fuzzgraph import shipped
from fuzzgraph.cli.options import as_json, say_json, whole_number
from fuzzgraph.process.torch_import import torch_problem

if TYPE_CHECKING:
    from fuzzgraph.faults import FaultScore, Score


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Print one name a line and stop.")
@click.option(
    "--seeds",
    metavar="N",
    default="5",
    show_default=True,
    callback=whole_number(1),
    help="Hunts for each fault.",
)
@click.option(
    "--examples",
    metavar="N",
    default="2000",
    show_default=True,
    callback=whole_number(1),
    help="Cases after which a search gives up.",
)
@click.option(
    "--healthy",
    metavar="N",
    default="1000",
    show_default=True,
    callback=whole_number(0),
    help="Cases on the engine without faults.",
)
@as_json
def faults(
    names: tuple[str, ...],
    only_list: bool,
    seeds: int,
    examples: int,
    healthy: int,
    as_json: bool,
) -> int:
    """Score the fuzzer over its planted faults.

    All of them, or those named.

    Exit code 1 says that a fault was missed, or that the healthy engine was accused.
    """
    problem = torch_problem()
    if only_list and not names and problem is not None:
        _list(sorted(path.stem for path in shipped.FAULTS.glob("*.json")), as_json=as_json)
        click.echo(f"no fault can be planted here: {problem}", err=True)
        return 0
    from fuzzgraph.faults import FAULTS, fault_named, score

    chosen = [fault_named(name).name for name in names] or list(FAULTS)
    if only_list:
        _list(chosen, as_json=as_json)
        return 0
    width = max(map(len, chosen))
    found = score(
        chosen,
        seeds=seeds,
        max_examples=examples,
        healthy_cases=healthy,
        progress=lambda one: click.echo(_line(one, width, seeds), err=as_json),
    )
    missed = [one.name for one in found.faults if not one.found]
    code = 1 if missed or found.healthy.findings else 0
    if as_json:
        say_json(_record(found, code))
    else:
        click.echo(_end(found, missed))
    return code


def _list(names: list[str], *, as_json: bool) -> None:
    if as_json:
        say_json({"faults": names})
        return
    for name in names:
        click.echo(name)


def _line(one: FaultScore, width: int, seeds: int) -> str:
    if not one.found:
        return f"{one.name.ljust(width)}  MISSED: found in {one.found_in} of {seeds} seeds"
    return (
        f"{one.name.ljust(width)}  {one.examples:>5} examples {one.seconds:>6.1f} s  "
        f"{one.steps} steps {one.requests} requests  {one.oracle}"
    )


def _end(found: Score, missed: list[str]) -> str:
    caught = len(found.faults) - len(missed)
    return (
        f"{caught} of {len(found.faults)} faults found in every one of {found.seeds} seeds; "
        f"healthy engine: {found.healthy.findings} findings in {found.healthy.cases} cases"
    )


def _record(found: Score, code: int) -> dict[str, Any]:
    return {
        "faults": found.faults,
        "healthy": found.healthy,
        "seeds": found.seeds,
        "exit_code": code,
    }
