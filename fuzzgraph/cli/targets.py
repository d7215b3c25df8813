"""`fuzzgraph targets`: what can be fuzzed here, what is judged, and on which releases it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.process.torch_import import torch_problem
from fuzzgraph.text.numbers import counted

if TYPE_CHECKING:
    from fuzzgraph.compatibility import Probe
    from fuzzgraph.ports import Target

_PACKAGE = "sglang"
"""The engine whose targets run on released wheels."""


class TargetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a target says of itself; nothing of its engine is opened for it."""

    name: str
    about: str = ""
    missing: str = ""
    """Why it cannot be opened; '' where it can."""
    isolated: bool = False
    modes: tuple[str, ...] = ()
    outputs_judged: Mapping[str, str] | None = None
    """Mode -> for which cases, '' for all of them; None where it says nothing of outputs."""
    stood_in_for: tuple[str, ...] = ()
    excuses: tuple[dict[str, str], ...] = ()
    """Each with `what`, `rule`, `source`, `reason`."""


@click.command()
@click.option(
    "--target",
    metavar="NAME|MODULE:FACTORY",
    help="Tell of this one what is judged, what stands in, and what is excused.",
)
@click.option(
    "--releases",
    "wanted",
    metavar="[all|VERSION,...]",
    help="Try the targets of released engines on these; all: those in the cache.",
)
@click.option("--write", type=Path, help="Write what was tried as a table to this file.")
@as_json
def targets(target: str | None, wanted: str | None, write: Path | None, as_json: bool) -> int:
    """List the engines that can be fuzzed here.

    With --releases also on which releases they run.
    """
    from fuzzgraph.targets import target_names

    if write is not None and not wanted:
        raise UsageError("--write needs --releases: there is nothing to write. Use --releases all.")
    records = [record(name) for name in ([target] if target else target_names())]
    probes = _probes(wanted, target, quiet=as_json) if wanted else ()
    if write is not None:
        write_atomically(write, page(probes, records).encode())
    if as_json:
        say_json({"targets": records, "releases": probes})
    else:
        click.echo("\n".join(_details(records[0]) if target else _list(records)))
    return 0


def record(name: str) -> TargetRecord:
    """What a target says of itself.

    Raises:
        UsageError: no such target.
    """
    from fuzzgraph.targets import open_target

    try:
        target = open_target(name)
    except AdapterUnavailable as error:
        return TargetRecord(name=name, missing=str(error))
    except (ImportError, OSError) as error:
        why = torch_problem() or f"cannot be imported ({type(error).__name__}: {error})"
        return TargetRecord(name=name, missing=str(why))
    from fuzzgraph.ports import excuses_of, is_isolated, outputs_judged, stood_in_for

    judged = outputs_judged(target)
    return TargetRecord(
        name=name,
        about=_described(target),
        isolated=is_isolated(target),
        modes=tuple(target.capabilities.modes),
        outputs_judged=None if judged is None else {str(mode): judged[mode] for mode in judged},
        stood_in_for=stood_in_for(target),
        excuses=tuple(
            {"what": one.what, "rule": one.rule, "source": one.source, "reason": one.reason}
            for one in excuses_of(target)
        ),
    )


def _described(target: Target) -> str:
    """What the target says of itself, else the first line of its class."""
    lines = (type(target).__doc__ or "").strip().splitlines()
    return getattr(target, "about", "") or (lines[0] if lines else "")


def _list(records: Sequence[TargetRecord]) -> Iterator[str]:
    """A line for each target; a second one for what it misses."""
    width = max(len(record.name) for record in records)
    problem = torch_problem()
    for record in records:
        yield f"{record.name.ljust(width)}  {line(record)}".rstrip()
        if record.missing and problem is None:
            yield f"{'':<{width}}  missing: {record.missing}"
    if problem is not None:
        yield f"no target can be run here: {problem}"


def line(record: TargetRecord) -> str:
    """What a target drives, and whether outputs are judged."""
    judged = {None: "", "": "no outputs"}.get(judged_modes(record), "outputs judged")
    only = {when for when in (record.outputs_judged or {}).values() if when}
    return "; ".join(part for part in (record.about, ", ".join((judged, *sorted(only)))) if part)


def judged_modes(record: TargetRecord) -> str | None:
    """Modes whose outputs are judged, e.g. 'decode' or 'draft (one branch)'; None if unknown."""
    if record.outputs_judged is None:
        return None
    modes = record.outputs_judged.items()
    return ", ".join(f"{mode} ({when})" if when else mode for mode, when in modes)


def _details(record: TargetRecord) -> Iterator[str]:
    yield f"{record.name}  {record.about}".rstrip()
    if record.missing:
        yield f"  missing: {record.missing}"
        return
    yield f"  modes: {', '.join(record.modes)}"
    judged = judged_modes(record)
    yield f"  outputs judged: {'it does not say' if judged is None else judged or 'none'}"
    for what in record.stood_in_for:
        yield f"  stood in for: {what}"
    for excuse in record.excuses:
        yield f"  excused: {_excused(excuse)}"


def _excused(excuse: Mapping[str, str]) -> str:
    return "{what}, rule {rule}: {reason} ({source})".format_map(excuse)


def _probes(wanted: str, target: str | None, *, quiet: bool) -> tuple[Probe, ...]:
    from fuzzgraph import releases as store
    from fuzzgraph.compatibility import probe_releases, released_targets

    if wanted == "all":
        versions = [one.version for one in store.installed(_PACKAGE)]
    else:
        versions = [store.parse(f"{_PACKAGE}=={version}")[1] for version in wanted.split(",")]
    tried = released_targets(_PACKAGE)
    if target is not None and target not in tried:
        raise UsageError(
            f"target={target!r} is no target of {_PACKAGE}, which --releases tries. Drop "
            "--releases, or name one that 'fuzzgraph targets' lists of it."
        )

    def tell(probe: Probe) -> None:
        said = "runs" if probe.runs else probe.why
        click.echo(f"{probe.release:<14}{probe.target:<28}{said}", err=quiet)

    return probe_releases(_PACKAGE, versions, {target: tried[target]} if target else tried, tell)


def page(probes: Sequence[Probe], records: Sequence[TargetRecord]) -> str:
    """Markdown: which target runs on which release, what is judged, what is excused and why."""
    from fuzzgraph.compatibility import table

    tried = {probe.target for probe in probes}
    return (
        f"# Targets by release of {_PACKAGE}\n\nOne small case on every target and release, in a "
        "worker, on a CPU. Written by\n`fuzzgraph targets --releases all --write "
        f"reports/targets.md`.\n\n{table(probes)}\n"
        + "\n".join(_judged_section([one for one in records if one.name in tried]))
    )


def _judged_section(records: Sequence[TargetRecord]) -> Iterator[str]:
    """What each target judges, stands in for and excuses; what all have in common stands once."""
    common = [what for what in _first(records).stood_in_for if _in_all(what, records)]
    yield "## What is judged\n"
    yield f"Stood in for in every target: {'; '.join(common) or 'nothing'}.\n"
    yield "| target | outputs judged | stood in for | excuses |"
    yield "|---|---|---|---|"
    for record in records:
        own = [what for what in record.stood_in_for if what not in common]
        cells = (
            judged_modes(record) or "no",
            "; ".join(own) or "nothing",
            str(len(record.excuses)),
        )
        yield f"| `{record.name}` | {' | '.join(cells)} |"
    yield from _excuses_section(records)


def _first(records: Sequence[TargetRecord]) -> TargetRecord:
    return records[0] if records else TargetRecord(name="")


def _in_all(what: str, records: Sequence[TargetRecord]) -> bool:
    return all(what in record.stood_in_for for record in records)


def _excuses_section(records: Sequence[TargetRecord]) -> Iterator[str]:
    """Each excuse once, with the targets that have it."""
    holders: dict[str, list[str]] = {}
    for record in records:
        for excuse in record.excuses:
            quoted = {**excuse, "what": f"`{excuse['what']}`"}  # its stars would be markup
            holders.setdefault(_excused(quoted), []).append(record.name)
    yield "\n## Excuses\n"
    yield "A name that need not follow a rule of handing over, with the source that says so.\n"
    for said, names in holders.items():
        every = len(names) == len(records)
        who = "all targets" if every else ", ".join(f"`{name}`" for name in names)
        yield f"- {said}: {who}"
    yield f"\n{counted(len(holders), 'excuse')} in all."
    yield ""
