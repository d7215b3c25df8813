"""Which targets run on which releases: one small case on each, in one worker per release."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fuzzgraph import releases, worker
from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.case.verified_states import verifies_states
from fuzzgraph.errors import FuzzGraphError, UsageError
from fuzzgraph.ports import Target
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets.packages import distribution_of


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a target runs on a release."""

    package: str
    """Import name of the engine."""
    target: str
    release: str
    runs: bool
    why: str = ""
    """Why it does not, in one line; '' where it does."""

    @property
    def note(self) -> str:
        """`why` as it holds for every target and release that it holds for."""
        release = re.escape(f"{self.package} {self.release} ")
        said = re.sub(release, "The release ", self.why, count=1, flags=re.IGNORECASE)
        return said.replace(f"target '{self.target}'", "the target")


def released_targets(package: str) -> dict[str, Target]:
    """Targets whose engine comes in that package, by name.

    Args:
        package: by its import name, or as pip calls it.
    """
    wanted = distribution_of(package)
    return {
        name: target
        for imported, targets in targets_by_package().items()
        if distribution_of(imported) == wanted
        for name, target in targets.items()
    }


def targets_by_package() -> dict[str, dict[str, Target]]:
    """Registered targets whose engine comes in a package: package -> name -> target."""
    from fuzzgraph.targets import open_target, target_names

    opened: dict[str, dict[str, Target]] = {}
    for name in target_names():
        try:
            target = open_target(name)
        except FuzzGraphError:
            continue
        package = str(getattr(target, "package", ""))
        if package:
            opened.setdefault(package, {})[name] = target
    return opened


def probe_case(target: Target) -> Case:
    """The simplest config of a target, with a full batch of two and then one padded to two."""
    from fuzzgraph.strategies import CI
    from fuzzgraph.strategies.configs import base_config

    config = base_config(target.capabilities, CI)
    config = msgspec.structs.replace(config, capture_bs=(2,))
    tokens = new_tokens(config.modes[0], config)
    first, longer = tokens, 4
    if verifies_states(config) and not target.capabilities.verified_prompts:
        # A verify goes on from the state that a step before it left.
        first, longer = 1, 4 + tokens
    two = tuple(BatchRow(request=name, seq_len=4, new_tokens=first) for name in (0, 1))
    one = BatchRow(request=0, seq_len=longer, new_tokens=tokens)
    steps = (
        ReplayStep(mode=config.modes[0], rows=two),
        ReplayStep(mode=config.modes[0], rows=(one,), finish=(1,)),
    )
    return Case(schema_version=1, config=config, steps=steps)


def new_tokens(mode: Mode, config: EngineConfig) -> int:
    """How many new tokens each row of the simplest step has."""
    return {"draft": 0, "target_verify": config.draft_tokens, "prefill": 4}.get(mode, 1)


def probe_releases(
    package: str,
    versions: Iterable[str],
    targets: dict[str, Target],
    progress: Callable[[Probe], None] = lambda probe: None,
) -> tuple[Probe, ...]:
    """Try every target on every release.

    A finding on the probe case does not keep a target from running; an engine that cannot be
    opened, captured or imported does.
    """
    probes = []
    for version in versions:
        client: worker.WorkerClient | None = None
        for name, target in targets.items():
            probe, client = _probed(package, version, name, target, client)
            probes.append(probe)
            progress(probe)
        if client is not None:
            client.close()
    return tuple(probes)


def _probed(
    package: str,
    version: str,
    name: str,
    target: Target,
    client: worker.WorkerClient | None,
) -> tuple[Probe, worker.WorkerClient | None]:
    """The probe, and the worker if it can be used again."""
    why = ""
    try:
        if client is None:
            path = releases.ensure(package, version)
            client = worker.open_client(Setup(target=name), paths=[path])
        else:
            client.retarget(name)
        why = _obstacle(client, probe_case(target))
    except UsageError as error:
        why = str(error)
    except FuzzGraphError as error:
        why = str(error).splitlines()[0]
        if client is not None:
            client.close()
        client = None
    return Probe(package=package, target=name, release=version, runs=not why, why=why), client


def _obstacle(client: worker.WorkerClient, case: Case) -> str:
    verdict = client.run_case(case)
    if verdict.skipped:
        return verdict.skipped
    stumbled = [finding.message for finding in verdict.findings if finding.oracle == "survival"]
    return stumbled[0] if stumbled else ""


def table(probes: Sequence[Probe]) -> str:
    """Markdown: targets by releases, and below it each reason why one does not run, once."""
    versions = list(dict.fromkeys(probe.release for probe in probes))
    names = list(dict.fromkeys(probe.target for probe in probes))
    found = {(probe.target, probe.release): probe for probe in probes}
    notes = list(dict.fromkeys(probe.note for probe in probes if probe.why))

    def cell(name: str, version: str) -> str:
        probe = found.get((name, version))
        if probe is None:
            return "not tried"
        return "runs" if probe.runs else f"[{notes.index(probe.note) + 1}]"

    lines = [f"| target | {' | '.join(versions)} |", "|---" * (len(versions) + 1) + "|"]
    for name in names:
        cells = " | ".join(cell(name, version) for version in versions)
        lines.append(f"| `{name}` | {cells} |")
    lines += ["", *(f"[{number}] {note}\n" for number, note in enumerate(notes, start=1))]
    return "\n".join(lines).rstrip() + "\n"


def tried_before(package: str, text: str) -> tuple[Probe, ...]:
    """What a table that `table` wrote tells of an engine; () where there is none."""
    notes = {f"[{number}]": note for number, note in re.findall(r"^\[(\d+)\] (.+)$", text, re.M)}
    head, _, *rows = [_cells(line) for line in text.splitlines() if line.startswith("|")] or [
        [],
        [],
    ]
    return tuple(
        Probe(
            package=package, target=row[0].strip("`"), release=release, runs=cell == "runs",
            why=notes.get(cell, ""),
        )
        for row in rows
        for release, cell in zip(head[1:], row[1:], strict=True)
        if cell != "not tried"
    )  # fmt: skip


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
