"""`fuzzgraph targets`, `releases`, `doctor` and `schema`: what there is, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import UsageError
from fuzzgraph.process.torch_import import torch_problem

if TYPE_CHECKING:
    from fuzzgraph.compatibility import Probe

_PACKAGE = "sglang"
"""The engine whose targets run on released wheels."""


@click.command()
@click.option(
    "--releases",
    "wanted",
    metavar="[all|VERSION,...]",
    help="Try the targets of released engines on these; all: those in the cache.",
)
@click.option("--write", type=Path, help="Write what was tried as a table to this file.")
@as_json
def targets(wanted: str | None, write: Path | None, as_json: bool) -> int:
    """List the engines that can be fuzzed here.

    With --releases also on which releases they run.
    """
    from fuzzgraph.targets import open_target, target_names

    if write is not None and not wanted:
        raise UsageError("--write needs --releases: there is nothing to write. Use --releases all.")
    records = [_target_record(name, open_target) for name in target_names()]
    probes = _probes(wanted, quiet=as_json) if wanted else ()
    if write is not None:
        write_atomically(write, _page(probes).encode())
    if as_json:
        say_json({"targets": records, "releases": probes})
        return 0
    width = max(len(record["name"]) for record in records)
    problem = torch_problem()
    for record in records:
        click.echo(f"{record['name'].ljust(width)}  {record['about']}".rstrip())
        if record["missing"] and problem is None:
            click.echo(f"{'':<{width}}  missing: {record['missing']}")
    if problem is not None:
        click.echo(f"no target can be run here: {problem}")
    return 0


def _probes(wanted: str, *, quiet: bool) -> tuple[Probe, ...]:
    from fuzzgraph import releases as store
    from fuzzgraph.compatibility import probe_releases, released_targets

    if wanted == "all":
        versions = [one.version for one in store.installed() if one.package == _PACKAGE]
    else:
        versions = [store.parse(f"{_PACKAGE}=={version}")[1] for version in wanted.split(",")]

    def tell(probe: Probe) -> None:
        said = "runs" if probe.runs else probe.why
        click.echo(f"{probe.release:<14}{probe.target:<28}{said}", err=quiet)

    return probe_releases(_PACKAGE, versions, released_targets(_PACKAGE), tell)


def _page(probes: tuple[Probe, ...]) -> str:
    from fuzzgraph.compatibility import table

    return (
        f"# Targets by release of {_PACKAGE}\n\nOne small case on every target and release, in a "
        "worker, on a CPU. Written by\n`fuzzgraph targets --releases all --write "
        f"reports/targets.md`.\n\n{table(probes)}"
    )


def _target_record(name: str, open_target: Any) -> dict[str, Any]:
    from fuzzgraph.errors import AdapterUnavailable

    record: dict[str, Any] = {"name": name, "isolated": False, "modes": [], "missing": ""}
    try:
        target = open_target(name)
    except AdapterUnavailable as error:
        return {**record, "about": "", "missing": str(error)}
    except (ImportError, OSError) as error:
        why = torch_problem() or f"cannot be imported ({type(error).__name__}: {error})"
        return {**record, "about": "", "missing": str(why)}
    from fuzzgraph.ports import is_isolated

    record["isolated"] = is_isolated(target)
    record["modes"] = list(target.capabilities.modes)
    record["about"] = _described(target)
    return record


def _described(target: Any) -> str:
    """What the target says of itself, else the first line of its class."""
    lines = (type(target).__doc__ or "").strip().splitlines()
    return getattr(target, "about", "") or (lines[0] if lines else "")


@click.group()
def releases() -> None:
    """Released engines, unpacked side by side in a cache."""


@releases.command("list")
@as_json
def list_(as_json: bool) -> int:
    """Show the releases that are there."""
    from fuzzgraph import releases as store

    found = store.installed()
    if as_json:
        say_json({"cache": str(store.cache_folder()), "releases": [_record(one) for one in found]})
        return 0
    for one in found:
        click.echo(f"{one.package}=={one.version}  {one.path}")
    click.echo(f"{len(found)} releases in {store.cache_folder()}")
    return 0


def _record(release: Any) -> dict[str, str]:
    return {"package": release.package, "version": release.version, "path": str(release.path)}


@releases.command()
@click.argument("requirements", metavar="PACKAGE==VERSION...", nargs=-1, required=True)
@as_json
def fetch(requirements: tuple[str, ...], as_json: bool) -> int:
    """Fetch and unpack releases; one already there is left alone."""
    from fuzzgraph import releases as store

    wanted = [store.parse(requirement) for requirement in requirements]
    paths = []
    for package, version in wanted:
        paths.append(str(store.ensure(package, version)))
        if not as_json:
            click.echo(f"{package}=={version}  {paths[-1]}")
    if as_json:
        say_json({"cache": str(store.cache_folder()), "paths": paths})
    return 0


@click.command()
@click.argument("of", metavar="[case|event|summary]", default="case")
@as_json
def schema(of: str, as_json: bool) -> int:
    """Print the JSON schema of a case, an event or a summary."""
    import msgspec

    from fuzzgraph.case import case_schema
    from fuzzgraph.errors import UsageError
    from fuzzgraph.run.events import Event, RunSummary

    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "case": case_schema,
        "event": lambda: msgspec.json.schema(Event),
        "summary": lambda: msgspec.json.schema(RunSummary),
    }
    if of not in makers:
        raise UsageError(f"schema={of!r} is unknown. Use one of: {', '.join(makers)}.")
    say_json(makers[of]())
    return 0


@click.command()
@as_json
def doctor(as_json: bool) -> int:
    """Say what this machine offers and what is missing."""
    from fuzzgraph.cli.doctor import examine, readable

    checks = examine()
    if as_json:
        say_json({"checks": checks, "exit_code": 0})
    else:
        click.echo(readable(checks))
    return 0
