"""Mutants of one engine on all of its targets: what does no target see?

A target's own measurement counts a change as unreachable that another target shows. Here one
sample is drawn from the lines that any of them executes, and each change runs on several targets
that execute its line, until one finds it. Targets are tried first that differ most in what they
execute of the changed function.

Learn what each target executes, with the same seed and seconds, then give the folder:

    fuzzgraph mutants --target T --release R --sample 0 --seed 21 --seconds 4s --out FOLDER/T
    python benchmarks/mutants_across.py FOLDER --sample 200 --each 6 --judged JUDGED --write PAGE

An interrupted measurement goes on where the same command is given again. Survivors are judged by
hand in the file JUDGED, as those of `fuzzgraph mutants` are (docs/mutants.md).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pages import add_write, publish

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.mutants import judgements, log, run_mutants
from fuzzgraph.mutants.drawing import Candidate, candidates, in_order
from fuzzgraph.mutants.log import Log
from fuzzgraph.mutants.records import Mutant, Result
from fuzzgraph.mutants.source import Source
from fuzzgraph.open_target import engine_paths
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets import open_target

Logs = Mapping[Path, Log]


@dataclass(frozen=True)
class Place:
    """A mutant and the folders of the targets that shall run it, in this order."""

    mutant: Mutant
    folders: tuple[Path, ...]
    executing: int
    """Targets that execute its line."""


def read(folder: Path) -> dict[Path, Log]:
    """The logs below a folder that have learned what their target executes.

    Lines differ between releases: those of the release that most targets run.
    """
    logs = {path.parent: log.read(path) for path in sorted(folder.glob(f"*/{log.NAME}"))}
    logs = {path: one for path, one in logs.items() if one.ground is not None}
    releases = Counter(_setup(one).release for one in logs.values())
    most = releases.most_common(1)[0][0] if releases else None
    return {path: one for path, one in logs.items() if _setup(one).release == most}


def drawn(logs: Logs, seed: int, count: int, each: int) -> list[Place]:
    """The sample, and where each of it runs."""
    setup = _setup(next(iter(logs.values())))
    roots = engine_paths(setup, open_target(setup.target))
    executed: dict[str, set[int]] = defaultdict(set)
    for one in logs.values():
        for module, lines in _executed(one).items():
            executed[module].update(lines)
    found: list[Candidate] = []
    for module, numbers in sorted(executed.items()):
        path = file_of(module, roots)
        if path is not None:
            found += candidates(module, source_of(path), numbers)
    order = in_order(found, seed)
    return [Place(one.mutant, *_folders(one.mutant, one.path, logs, each)) for one in order[:count]]


def _folders(mutant: Mutant, path: str, logs: Logs, each: int) -> tuple[tuple[Path, ...], int]:
    """One target of each set of lines that targets execute in the function, then in the module."""
    own = _extent(path, mutant.function)
    here = [
        (folder, lines)
        for folder, one in logs.items()
        if mutant.line in (lines := frozenset(_executed(one).get(mutant.module, ())))
    ]
    here.sort(key=lambda row: _hash(mutant.id, row[0].name))
    chosen: list[Path] = []
    for part in (own, range(1, 1 << 30)):
        seen = set()
        kinds = Counter(frozenset(line for line in lines if line in part) for _, lines in here)
        for folder, lines in sorted(here, key=lambda row: -kinds[_of(row[1], part)]):
            kind = _of(lines, part)
            if kind not in seen and folder not in chosen:
                chosen.append(folder)
            seen.add(kind)
    chosen += [folder for folder, _ in here if folder not in chosen]
    return tuple(chosen[:each]), len(here)


def _of(lines: Iterable[int], part: range) -> frozenset[int]:
    return frozenset(line for line in lines if line in part)


@cache
def source_of(path: str) -> Source:
    return Source.read(path)


@cache
def _extent(path: str, name: str) -> range:
    """Lines of a function, by the last part of its name."""
    last = name.rpartition(".")[2]
    found = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(source_of(path).tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == last
    ]
    return found[0] if len(found) == 1 else range(1, 1 << 30)


def file_of(module: str, roots: Iterable[Path]) -> str | None:
    for root in roots:
        base = root.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return str(path)
    return None


def run(places: list[Place], logs: Logs, jobs: int) -> None:
    """Target after target: each imports its engine once and runs all that waits for it."""
    folders = {folder for place in places for folder in place.folders}
    # Targets that many mutants name first come first.
    first = Counter(place.folders[0] for place in places if place.folders)
    order = sorted(folders, key=lambda folder: (-first[folder], folder.name))
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda folder: _run_one(folder, places, logs), order))


def _run_one(folder: Path, places: list[Place], logs: Logs) -> None:
    mine = logs[folder]
    wanted = [
        place.mutant
        for place in places
        if folder in place.folders
        and place.mutant.id not in mine.results
        and outcome_of(place, logs)[0] not in ("found", "does_not_start")
    ]
    if not wanted or mine.sought is None:
        return
    try:
        run_mutants(mine.sought, folder, named=wanted, progress=mine.add)
    except FuzzGraphError as error:
        print(f"{folder.name}: {error}", flush=True)
        return
    print(f"{folder.name}: {len(wanted)} mutants", flush=True)


def outcome_of(place: Place, logs: Logs) -> tuple[str, str]:
    """What became of a mutant in all: found by one target, else survived; and the target."""
    results = [(folder, logs[folder].results.get(place.mutant.id)) for folder in place.folders]
    there = [(folder, one) for folder, one in results if one is not None]
    for outcome in ("found", "survived", "failed", "does_not_start"):
        for folder, one in there:
            if one.outcome == outcome:
                return outcome, folder.name
    return "", ""


def page(places: list[Place], logs: Logs, judged: Path | None) -> str:
    known = judgements.read(judged) if judged else {}
    started, left, missing = 0, [], Counter[str]()
    sums, tried = Counter[str](), Counter[int]()
    for place in places:
        outcome, _ = outcome_of(place, logs)
        if outcome in ("", "does_not_start"):
            continue
        started += 1
        if outcome == "found":
            sums["found"] += 1
            tried[_nth(place, logs)] += 1
            continue
        said = known.get(place.mutant.id)
        kind = said.judgement if said else "unjudged"
        sums[kind] += 1
        left.append((place, kind, said.dimension if said else "", said.why if said else ""))
        if said and said.dimension:
            missing[said.dimension] += 1
    if judged:
        judgements.add_places(judged, [place.mutant for place, *_ in left], known)
    able = started - sums["equivalent"]
    counted = able - sums["unreachable"]
    ground = next(iter(logs.values()))
    assert ground.sought is not None
    lines = [
        f"# Mutants across all targets, {_setup(ground).engine}",
        "",
        "One-line changes of lines that any target executes while it captures and prepares",
        "replays. Each runs on several of the targets that execute its line, until one finds it.",
        "Written by `python benchmarks/mutants_across.py`; the judgements are by hand.",
        "",
        f"{started} started; found {sums['found']}; equivalent {sums['equivalent']}; unreachable "
        f"{sums['unreachable']} ({_percent(sums['unreachable'], able)} of those that are not "
        f"equivalent); holes {sums['hole']}; unjudged {sums['unjudged']}. Found of the reachable "
        f"ones: {_percent(sums['found'], counted)}.",
        "",
        f"{len(logs)} targets; seed {ground.sought.seed}; {ground.sought.seconds:g} processor "
        "seconds for each mutant and target. Found by the first target that was tried: "
        f"{tried[1]}; by a later one: {sums['found'] - tried[1]}.",
        "",
        "| missing dimension | mutants |",
        "|---|---|",
        *(f"| {name} | {number} |" for name, number in missing.most_common()),
        "",
        "| survivor | change | targets that execute it | judgement | why |",
        "|---|---|---|---|---|",
        *(_row(*one) for one in sorted(left, key=lambda row: (row[1], row[0].mutant.id))),
    ]
    return "\n".join(lines) + "\n"


def _row(place: Place, kind: str, dimension: str, why: str) -> str:
    one = place.mutant
    said = "; ".join(filter(None, (dimension, why))).replace("|", "\\|")
    where = f"`{one.module}:{one.line}`"
    return f"| {where} | {one.operator} | {place.executing} | {kind} | {said} |"


def _nth(place: Place, logs: Logs) -> int:
    for number, folder in enumerate(place.folders, start=1):
        one: Result | None = logs[folder].results.get(place.mutant.id)
        if one is not None and one.outcome == "found":
            return number
    return 0


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "none"


def _executed(one: Log) -> Mapping[str, tuple[int, ...]]:
    assert one.ground is not None
    return one.ground.executed


def _setup(one: Log) -> Setup:
    assert one.sought is not None
    return one.sought.setup


def _hash(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder for each target")
    parser.add_argument("--sample", type=int, default=200, help="mutants")
    parser.add_argument("--each", type=int, default=6, help="targets for each mutant, at most")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--judged", type=Path, help="file of judgements")
    add_write(parser)
    options = parser.parse_args()
    logs = read(options.folder)
    if not logs:
        parser.error(f"{options.folder}: no log below it. See above how each target learns.")
    sought = next(iter(logs.values())).sought
    assert sought is not None
    places = drawn(logs, sought.seed, options.sample, options.each)
    run(places, logs, options.jobs)
    publish(page(places, logs, options.judged), options)


if __name__ == "__main__":
    main()
