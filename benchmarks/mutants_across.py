"""Mutants of one engine on all of its targets: what does no target see?

A target's own measurement counts a change as unreachable that another target shows. Here one
sample is drawn from the lines that any of them executes, and each change runs on several targets
that execute its line, until one finds it. Targets are tried first that differ most in what they
execute of the changed function.

Learn what each target executes, with the same seed and seconds, then give the folder:

    fuzzgraph mutants --target T --release R --sample 0 --seed 21 --seconds 4s --out FOLDER/T
    python benchmarks/mutants_across.py FOLDER --sample 200 --each 6 --judged JUDGED --write PAGE

An interrupted measurement goes on where the same command is given again. `--seed` draws another
sample of the lines that have been learned: copy the folder without its results first. Survivors
are judged by hand in the file JUDGED, as those of `fuzzgraph mutants` are (docs/mutants.md).
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pages import add_write, publish

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.mutants import judgements, log, report, run_mutants
from fuzzgraph.mutants.drawing import Candidate, candidates, digest, functions, in_order
from fuzzgraph.mutants.log import Log
from fuzzgraph.mutants.records import Mutant, Result, Sought
from fuzzgraph.mutants.score import Score, Survivor, score
from fuzzgraph.mutants.source import Source
from fuzzgraph.open_target import engine_paths
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets import open_target

Logs = Mapping[Path, Log]
_WHOLE = range(1, 1 << 30)
"""Lines of a module."""


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
    here = [
        (folder, lines)
        for folder, one in logs.items()
        if mutant.line in (lines := frozenset(_executed(one).get(mutant.module, ())))
    ]
    here.sort(key=lambda row: digest(mutant.id, row[0].name))
    chosen: dict[Path, None] = {}
    for part in (_lines_of(path, mutant), _WHOLE):
        kinds = {
            folder: frozenset(line for line in lines if line in part) for folder, lines in here
        }
        often = Counter(kinds.values())
        first: dict[frozenset[int], Path] = {}
        for folder in sorted(kinds, key=lambda folder: -often[kinds[folder]]):
            first.setdefault(kinds[folder], folder)
        chosen |= dict.fromkeys(first.values())
    chosen |= dict.fromkeys(folder for folder, _ in here)
    return tuple(chosen)[:each], len(here)


@cache
def source_of(path: str) -> Source:
    return Source.read(path)


def _lines_of(path: str, mutant: Mutant) -> range:
    """Of the function that is changed; a name that stands twice counts for the whole module."""
    found = [one for name, one in functions(source_of(path).tree) if name == mutant.function]
    if len(found) != 1:
        return _WHOLE
    return range(found[0].lineno, (found[0].end_lineno or found[0].lineno) + 1)


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
        and _in_all(place, logs)[0] not in ("found", "does_not_start")
    ]
    if not wanted:
        return
    try:
        run_mutants(_sought(mine), folder, named=wanted, progress=mine.add)
    except FuzzGraphError as error:
        print(f"{folder.name}: {error}", flush=True)
        return
    print(f"{folder.name}: {len(wanted)} mutants", flush=True)


def _in_all(place: Place, logs: Logs) -> tuple[str, int]:
    """What became of a mutant: found by one target, else survived; and which target, from 1."""
    there = [(n, _result(place, folder, logs)) for n, folder in enumerate(place.folders, start=1)]
    for outcome in ("found", "survived", "failed", "does_not_start"):
        for number, one in there:
            if one is not None and one.outcome == outcome:
                return outcome, number
    return "", 0


def _result(place: Place, folder: Path, logs: Logs) -> Result | None:
    return logs[folder].results.get(place.mutant.id)


def merged(places: list[Place], logs: Logs) -> Log:
    """A log with one result for each mutant, to be scored as that of one target is."""
    first = next(iter(logs.values()))
    whole = Log(sought=first.sought, ground=first.ground)
    for place in places:
        _, number = _in_all(place, logs)
        one = _result(place, place.folders[number - 1], logs) if number else None
        if one is not None:
            whole.add(one)
    return whole


def page(places: list[Place], logs: Logs, judged: Path | None, drawn_by: int) -> str:
    """The figures, the missing dimensions and the survivors; survivors get an entry in `judged`."""
    known = judgements.read(judged) if judged else {}
    whole = merged(places, logs)
    of = score(whole, known)
    if judged:
        judgements.add_places(judged, [one.result.mutant for one in of.survivors], known)
    outcomes = [_in_all(place, logs) for place in places]
    tried = [number for outcome, number in outcomes if outcome == "found"]
    said = _said(of, len(logs), drawn_by, tried, _soon(whole))
    return "\n".join(_lines(of, said, {one.mutant.id: one for one in places})) + "\n"


def _soon(whole: Log) -> int:
    """How many mutants are found in half of the time that each target has for one."""
    half = _sought(whole).seconds / 2
    return sum(one.outcome == "found" and one.seconds <= half for one in whole.results.values())


def _said(of: Score, targets: int, drawn_by: int, tried: list[int], soon: int) -> str:
    """How it was measured, and how fast."""
    sought = of.sought
    first = tried.count(1)
    return (
        f"{targets} targets; cases of seed {sought.seed}, mutants of seed {drawn_by}; "
        f"{sought.seconds:g} processor seconds for each mutant and target. Found by the first "
        f"target that was tried: {first}; by a later one: {len(tried) - first}. Found in half of "
        f"a target's time: {soon}."
    )


def _lines(of: Score, said: str, places: Mapping[str, Place]) -> list[str]:
    survivors = sorted(of.survivors, key=lambda one: (one.judgement, one.result.mutant.id))
    return [
        f"# Mutants across all targets, {of.sought.setup.engine}",
        "",
        "One-line changes of lines that any target executes while it captures and prepares",
        "replays. Each runs on several of the targets that execute its line, until one finds it.",
        "Written by `python benchmarks/mutants_across.py`; the judgements are by hand.",
        "",
        f"{report.headline(of)}.",
        "",
        said,
        "",
        "| missing dimension | mutants |",
        "|---|---|",
        *(f"| {name} | {number} |" for name, number in of.dimensions.items()),
        "",
        "| survivor | change | targets that execute it | judgement | why |",
        "|---|---|---|---|---|",
        *(_row(one, places[one.result.mutant.id].executing) for one in survivors),
    ]


def _row(one: Survivor, executing: int) -> str:
    mutant = one.result.mutant
    said = "; ".join(filter(None, (one.dimension, one.why))).replace("|", "\\|")
    where = f"`{mutant.module}:{mutant.line}`"
    return f"| {where} | {mutant.operator} | {executing} | {one.judgement} | {said} |"


def _executed(one: Log) -> Mapping[str, tuple[int, ...]]:
    assert one.ground is not None
    return one.ground.executed


def _sought(one: Log) -> Sought:
    assert one.sought is not None
    return one.sought


def _setup(one: Log) -> Setup:
    return _sought(one).setup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder for each target")
    parser.add_argument("--sample", type=int, default=200, help="mutants")
    parser.add_argument("--each", type=int, default=6, help="targets for each mutant, at most")
    parser.add_argument("--seed", type=int, help="that draws the mutants, if not the cases' own")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--judged", type=Path, help="file of judgements")
    add_write(parser)
    options = parser.parse_args()
    logs = read(options.folder)
    if not logs:
        parser.error(f"{options.folder}: no log below it. See above how each target learns.")
    own = _sought(next(iter(logs.values()))).seed
    seed = own if options.seed is None else options.seed
    places = drawn(logs, seed, options.sample, options.each)
    run(places, logs, options.jobs)
    publish(page(places, logs, options.judged, seed), options)


if __name__ == "__main__":
    main()
