"""The engine's own lines that a finding is about: which called, raised, wrote or allocated.

The case is run twice more in fresh sessions, judged and recorded; every source line is then named
by its whole path. It is done once for a finding, not for every case. What lies outside of the
engine's packages, such as a target's stand-ins, is passed over.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

import msgspec
import torch

from fuzzgraph.case import Case
from fuzzgraph.execution import Execution
from fuzzgraph.execution.failures import SessionFailed
from fuzzgraph.finding import LINE_ROLES, EngineLine, Finding, LineRole, Place
from fuzzgraph.graphs import RecordedOp
from fuzzgraph.layout import plan
from fuzzgraph.memory import Region
from fuzzgraph.memory.source_lines import lines_below, sources_of
from fuzzgraph.ports import Target, engine_packages
from fuzzgraph.repro.checks.footprint import pool_regions
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.writers import Writers
from fuzzgraph.run.spec import Setup
from fuzzgraph.text.finding_text import LEFT_OVER, observed

_LINE = re.compile(r"(?P<path>[^\s:]+\.py):(?P<line>[1-9][0-9]*) in (?P<function>.+)")
_CALLERS = 20
"""Of a line at most: an engine's own way to a write is shorter."""
_OURS = "fuzzgraph"
_BUILTIN = "targets/builtin"
"""What of FuzzGraph is an engine under test, with the faults planted in it."""


def engine_lines(
    case: Case, finding: Finding, target: Target, setup: Setup, below: str = ""
) -> tuple[EngineLine, ...]:
    """The lines, the most telling first; none where nothing is known.

    Args:
        case: what shows the finding, shrunk if possible.
        below: path of the engine's package below the root of its checkout; '' outside of one.
    """
    folders = _folders(target, below)
    with lines_below(folders):
        told = list(_told(case, finding, target, setup))
        found = [line for line in told if line.role != "allocated"]
        if setup.graphs == "recorder":
            with suppress(NotStandalone, SessionFailed):
                found += _recorded(case, finding, target)
        found += told
    lines: dict[LineRole, EngineLine] = {}
    for line in found:
        if any(f"{line.path}/".startswith(f"{called}/") for called in folders.values()):
            known = lines.setdefault(line.role, line)
            if str(known) == str(line) and not known.callers:
                lines[line.role] = msgspec.structs.replace(known, callers=line.callers)
    ordered = [lines[role] for role in LINE_ROLES if role in lines]
    return tuple(line for line in ordered if not _is_first_content(line, lines.get("allocated")))


def _is_first_content(line: EngineLine, allocated: EngineLine | None) -> bool:
    """Whether a write is what the line that allocated put there, e.g. by `torch.zeros`."""
    return line.role == "written" and allocated is not None and line.short == allocated.short


def _folders(target: Target, below: str) -> dict[str, str]:
    """Folders and files of the engine, by what their paths are to be called."""
    folders: dict[str, str] = {}
    for number, package in enumerate(engine_packages(target)):
        root = package.partition(".")[0]
        file = getattr(sys.modules.get(root), "__file__", None)
        if not isinstance(file, str):
            continue
        folder, name = os.path.split(file)
        if root == _OURS:
            folders[os.path.join(folder, *_BUILTIN.split("/"))] = f"{_OURS}/{_BUILTIN}"
        elif name == "__init__.py":
            folders.setdefault(folder, below if below and not number else root)
        else:
            folders.setdefault(file, name)
    return folders


def _line(
    role: LineRole, source: str, does: str, callers: Iterable[str] = ()
) -> Iterator[EngineLine]:
    """The line that a text names, if it is one of the engine's; with the lines that call it."""
    for place in _places([source]):
        called = tuple(islice(_places(callers), _CALLERS))
        yield EngineLine(
            path=place.path,
            line=place.line,
            function=place.function,
            role=role,
            does=does,
            callers=called,
        )


def _places(sources: Iterable[str]) -> Iterator[Place]:
    for source in sources:
        known = _LINE.fullmatch(source)
        if known is not None:
            values = {**known.groupdict(), "line": int(known["line"])}
            with suppress(msgspec.ValidationError):  # a path that no report may hold
                yield msgspec.convert(values, Place)


# ---- what the oracles are told


def _told(case: Case, finding: Finding, target: Target, setup: Setup) -> Iterator[EngineLine]:
    """Lines in the finding's own record, as a fresh session gives it."""
    fresh = Execution(target, setup, cache_size=0)
    try:
        findings = fresh.run_case(case).findings
    finally:
        with suppress(Exception):
            fresh.close()
    for seen in findings:
        if seen.key == finding.key:
            kernel = str(seen.detail.get("kernel", ""))
            yield from _line("called", str(seen.detail.get("source", "")), f"calls {kernel}")
            error = _kind(str(seen.detail.get("error", "")))
            yield from _line("raised", str(seen.detail.get("where", "")), f"raises {error}")
            small = seen.detail.get("too_small") or seen.detail.get("engine_buffer")
            name = str(small or seen.buffer)
            line = str(seen.detail.get("allocated_at", ""))
            yield from _line("allocated", line, f"allocates {name}")


def _kind(error: str) -> str:
    """The type of an error."""
    return error.partition(":")[0]


# ---- what a recording tells


def _recorded(case: Case, finding: Finding, target: Target) -> Iterator[EngineLine]:
    """The call, the last writer and the allocation of what the finding names."""
    writers = Writers()
    early = finding.stage in ("open", "warmup", "capture")  # what steps write came after it
    batches = [] if early else plan(case)[: finding.step + 1]
    try:
        recording = Recording.of(
            case.config, target, opening=True, watcher=writers, over_lanes=True
        )
    except SessionFailed as failed:
        if failed.__cause__ is not None:
            yield from _raised(sources_of(failed.__cause__), failed.failure.error)
        return
    try:
        with torch.no_grad():
            for batch in batches:
                recording.lay(batch)
                if batch.step == finding.step:
                    _watch(recording, writers, finding)
                run = recording.add(batch)
                if run.failure is not None:
                    yield from _raised(run.failure.sources, run.failure.error)
                    break
                if batch.step == finding.step and finding.stage == "eager" != batch.via:
                    recording.add(batch, "eager")
            yield from _lines_of(recording, writers, finding)
    finally:
        with suppress(SessionFailed):
            recording.opened.close()


def _raised(sources: tuple[str, ...], error: str) -> Iterator[EngineLine]:
    if sources:
        yield from _line("raised", sources[0], f"raises {_kind(error)}", sources[1:])


def _watch(recording: Recording, writers: Writers, finding: Finding) -> None:
    """Watch the bytes that nobody was to write."""
    with suppress(NotStandalone):
        if finding.symptom == "red_zone_hit":
            (region,) = _named(recording, finding.buffer)
            memory = recording.memory.arena.bytes
            end = region.offset + region.nbytes
            if finding.detail.get("side") == "before":
                writers.watch(lambda: memory[region.start : region.offset])
            else:
                writers.watch(lambda: memory[end : region.end])
        elif finding.detail.get("indices"):
            (region,) = pool_regions(recording, finding.buffer)
            rows = _tensor_of(recording, region)
            indices = finding.detail.get("indices")
            chosen = torch.tensor(indices if isinstance(indices, list) else [], device=rows.device)
            if rows.dim() and len(chosen) and int(chosen.max()) < len(rows):
                writers.watch(lambda: rows[chosen])


def _lines_of(recording: Recording, writers: Writers, finding: Finding) -> Iterator[EngineLine]:
    called = writers.last_launch(lambda op: _is_about(finding, op))
    if called is not None:
        does = f"calls {called.name}"
        yield from _line("called", called.source, does, writers.callers[called])
    found = list(_of_memory(recording, writers, finding, called))
    if not found and called is None and finding.clause in ("computes", "reads", "history"):
        last = writers.last_launch(lambda op: True)
        if last is not None:
            does = f"calls {last.name}, the last kernel before {finding.buffer}"
            yield from _line("called", last.source, does, writers.callers[last])
    yield from found


def _of_memory(
    recording: Recording, writers: Writers, finding: Finding, called: RecordedOp | None
) -> Iterator[EngineLine]:
    """Who wrote and who allocated it."""
    if writers.changed_by is not None:
        writes = f"writes to it{_by(writers.changed_by)}"
        if finding.symptom == "red_zone_hit":
            writes = f"writes outside of {finding.buffer}{_by(writers.changed_by)}"
        callers = writers.callers[writers.changed_by]
        yield from _line("written", writers.changed_by.source, writes, callers)
    for name in _names(finding):
        tensor = _find(recording, name, finding.mode, called)
        if tensor is None:
            continue
        wrote = writers.of(tensor)
        writer = wrote[-1] if wrote else None
        region = recording.memory.region_of(tensor)
        line = "" if region is None else region.allocated_at
        # What lies there is not in question where it was only reached from outside.
        outside = finding.symptom in _OF_ITS_PLACE
        if writer is not None and not outside:
            does = f"last writes {name}{_by(writer)}"
            yield from _line("written", writer.source, does, writers.callers[writer])
        if region is not None:
            known = not outside and not writers.wrote_anywhere
            since = _since(line, [one.source for one in wrote]) if known else ""
            called_so = name if line in region.name else region.name
            made = writers.allocation(tensor, line)
            callers = writers.callers[made] if made is not None else ()
            yield from _line("allocated", line, f"allocates {called_so}{since}", callers)


_OF_ITS_PLACE = ("red_zone_hit", "foreign_write", "stray_access", "race", "freed_memory")
"""Findings of where memory lies, and not of what is there."""


def _since(line: str, writes: list[str]) -> str:
    """What became of memory since a line allocated it, where no other line wrote to it last.

    Args:
        writes: the lines that wrote to it, in order. A launch that left its content as it was is
            none of them, hence 'changed'.
    """
    if writes[-1:] != [line]:
        return ""
    return ", and nothing changed it since" if len(writes) == 1 else " and writes it"


def _by(op: RecordedOp) -> str:
    return "" if op.kind == "operation" else f", by {op.name}"


def _is_about(finding: Finding, op: RecordedOp) -> bool:
    """Whether a launch is of the kernel that a finding names."""
    return (
        finding.detail.get("kernel") == op.name
        or finding.buffer == op.name
        or finding.buffer.startswith(f"{op.name}.")
        or observed(finding).startswith(f"{op.name}: ")
    )


def _names(finding: Finding) -> Iterator[str]:
    """What of the engine a finding is about: what a result depends on before the result."""
    for key in ("left_over", "blamed"):
        for place in str(finding.detail.get(key, "")).split(", "):
            name = place.removesuffix(LEFT_OVER)
            if name and "(" not in name:  # not the part of a pool that the batch does not own
                yield name
    yield finding.buffer


def _find(
    recording: Recording, name: str, mode: str, called: RecordedOp | None
) -> torch.Tensor | None:
    """The tensor that a finding calls so; None where it is not there."""
    if called is not None:
        argument = called.kwargs.get(name.removeprefix(f"{called.name}."))
        if isinstance(argument, torch.Tensor):
            return argument
    run = recording.runs[-1] if recording.runs else None
    if run is not None and name in run.results:
        return run.results[name]
    fields = recording.opened.session.captured_addresses()
    for field in (f"{mode}.{name}", name):
        if field in fields:
            return fields[field][0]
    with suppress(NotStandalone):
        for region in _named(recording, name):
            return _tensor_of(recording, region)
    return None if run is None else _held(recording, run, name)


def _held(recording: Recording, run: Run, name: str) -> torch.Tensor | None:
    """What the runner handed over under this name, as bytes of the arena."""
    for handover in () if run.seen is None else run.seen.handovers:
        for path, part in handover.tensors.items():
            start = recording.offset(part.address)
            if f"{handover.to}.{path}" == name and start is not None:
                region = recording.memory.region_at(part.address)
                return None if region is None else _tensor_of(recording, region)
    return None


def _named(recording: Recording, name: str) -> list[Region]:
    """The one region of that name.

    Raises:
        NotStandalone: there is none, or there are several.
    """
    regions = [region for region in recording.regions() if region.name == name]
    return regions if len(regions) == 1 else pool_regions(recording, name)


def _tensor_of(recording: Recording, region: Region) -> torch.Tensor:
    base = recording.memory.arena.typed(region.dtype)
    return base.as_strided(region.shape, region.stride, region.offset // region.dtype.itemsize)
