"""The mutants of several targets: a table of their scores for each folder of measurements.

A folder holds what `fuzzgraph mutants --out FOLDER/TARGET` left for each target. The reports in it
are written anew from the logs and the judgements. What stands under "Judgements" in the page is
written by hand, and kept.

    python benchmarks/mutants.py FOLDER... [--write reports/mutants/README.md]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pages import add_write, publish

from fuzzgraph.corpus import write_atomically
from fuzzgraph.mutants import Score, judgements, log, report
from fuzzgraph.mutants.score import score

_BY_HAND = "## Judgements"


def scores(folder: Path) -> list[Score]:
    """Of the measurements in a folder, whose reports are written anew."""
    found = []
    for path in sorted(folder.glob(f"*/{log.NAME}")):
        read = log.read(path)
        if read.ground is None:
            continue
        found.append(score(read, judgements.read(path.parent / judgements.NAME)))
        write_atomically(path.parent / "report.md", report.markdown(found[-1]).encode())
    return found


def section(folder: Path) -> list[str]:
    """The table of one folder."""
    found = scores(folder)
    lines = [
        f"## {folder.name}",
        "",
        "| target | started | found | equivalent | unreachable | holes | unjudged | score |",
        "|---|---|---|---|---|---|---|---|",
        *(row(one, folder.name) for one in found),
        total(found),
        "",
        f"Seeds {numbers(one.sought.seed for one in found)}; processor seconds for each mutant: "
        f"{numbers(one.sought.seconds for one in found)}; modules: "
        f"{', '.join(sorted({name for one in found for name in one.sought.modules})) or 'all'}.",
        "",
    ]
    dimensions = Counter[str]()
    for one in found:
        dimensions.update(one.dimensions)
    lines += ["| missing dimension | mutants |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in dimensions.most_common()]
    return [*lines, ""]


def row(one: Score, folder: str) -> str:
    setup = one.sought.setup
    link = f"[`{setup.target}` {setup.release}]({folder}/{setup.target}/report.md)"
    return (
        f"| {link} | {one.started} | "
        f"{one.found} | {one.equivalent} | {one.unreachable} ({one.unreachable_percent:.0f}%) | "
        f"{one.holes} | {one.unjudged} | {one.percent:.0f}% |"
    )


def total(found: Iterable[Score]) -> str:
    every = list(found)
    names = ("started", "found", "equivalent", "unreachable", "holes", "unjudged", "counted")
    sums = {name: sum(getattr(one, name) for one in every) for name in names}
    percent = 100 * sums["found"] / sums["counted"] if sums["counted"] else 0.0
    cells = (str(sums[name]) for name in names[:-1])
    return f"| all | {' | '.join(cells)} | {percent:.0f}% |"


def numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values)))


def page(folders: list[Path], before: str) -> str:
    """One section for each folder, and what was written by hand."""
    lines = [
        "# Mutants of released engines",
        "",
        "One-line changes of an engine's own Python, in lines that a target executes while it",
        "captures and prepares replays, and what the target noticed",
        "([docs/mutants.md](../../docs/mutants.md)). Score: found / (started - equivalent -",
        "unreachable). Written by `python benchmarks/mutants.py`; the judgements are by hand, in",
        "the `judgements.toml` of each target.",
        "",
        *(line for folder in folders for line in section(folder)),
    ]
    by_hand = before.partition(_BY_HAND)[2]
    return "\n".join(lines) + (f"\n{_BY_HAND}{by_hand}" if by_hand else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    add_write(parser)
    options = parser.parse_args()
    before = options.write.read_text() if options.write and options.write.is_file() else ""
    publish(page(options.folders, before), options)


if __name__ == "__main__":
    main()
