"""`fuzzgraph targets`: what can be fuzzed here, what is judged, and on which releases it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.process.torch_import import torch_problem

if TYPE_CHECKING:
    from fuzzgraph.compatibility import Probe
    from fuzzgraph.ports import Target


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
    excuses: tuple[dict[str, Any], ...] = ()
    """Each with the attributes of an `Excuse`."""


@click.command()
@click.option(
    "--target",
    metavar="NAME|MODULE:FACTORY",
    help="Tell of this one what is judged, what stands in, and what is excused.",
)
@click.option(
    "--releases",
    "wanted",
    metavar="[all|ENGINE|ENGINE==VERSION,...]",
    help="Try the targets of released engines on these; without a version: all in the cache. With "
    "--target a VERSION alone is one of its engine's.",
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
        from fuzzgraph.cli.targets_page import page

        before = write.read_text(encoding="utf-8") if write.is_file() else ""
        every = [record(name) for name in target_names()] if target else records
        write_atomically(write, page(probes, every, before).encode())
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
        excuses=tuple(map(asdict, excuses_of(target))),
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
        yield f"  excused: {excused(excuse)}"


def excused(excuse: Mapping[str, Any]) -> str:
    """An excuse in one line, with its source."""
    from fuzzgraph.handover import Excuse

    return str(Excuse(**excuse))


def _probes(wanted: str, target: str | None, *, quiet: bool) -> tuple[Probe, ...]:
    from fuzzgraph.compatibility import probe_releases, targets_by_package

    engines = targets_by_package()
    own = next((name for name, found in engines.items() if target in found), "")
    if target is not None and not own:
        raise UsageError(
            f"target={target!r} is no target of a released engine, which --releases tries. Drop "
            "--releases, or name one that 'fuzzgraph targets' lists of such an engine."
        )

    def tell(probe: Probe) -> None:
        said = "runs" if probe.runs else probe.why
        engine = f"{probe.package} {probe.release}"
        click.echo(f"{engine:<26}{probe.target:<34}{said}", err=quiet)

    found: list[Probe] = []
    for package, versions in wanted_releases(wanted, [own] if own else list(engines)).items():
        tried = engines[package]
        chosen = {target: tried[target]} if target else tried
        found += probe_releases(package, versions, chosen, tell)
    return tuple(found)


def wanted_releases(wanted: str, packages: Sequence[str]) -> dict[str, list[str]]:
    """Import name of each engine -> its releases that are asked for, in order.

    Args:
        wanted: `all`, or engines and `ENGINE==VERSION`, with commas between them; of one engine
            also its versions alone.
        packages: import names of the engines that can be asked.

    Raises:
        UsageError: it names another engine, or no release.
    """
    from fuzzgraph import releases as store
    from fuzzgraph.targets.packages import distribution_of

    by_distribution = {distribution_of(name): name for name in packages}
    chosen: dict[str, list[str]] = {}
    for word in packages if wanted == "all" else wanted.split(","):
        name, _, version = word.partition("==")
        if distribution_of(name) not in by_distribution and len(packages) == 1 and not version:
            name, version = packages[0], word
        package = by_distribution.get(distribution_of(name))
        if package is None:
            raise UsageError(
                f"releases={word!r} names none of these engines: {', '.join(packages)}. Write "
                "ENGINE or ENGINE==VERSION, for example sglang==0.5.12, or all."
            )
        if version:
            found = [store.parse(f"{package}=={version}")[1]]
        else:
            found = [one.version for one in store.installed(package)]
        chosen.setdefault(package, []).extend(found)
    return chosen
