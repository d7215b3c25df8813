"""The hunt: every target on a released engine for so many minutes, one after the other; a table.

A target whose run lies in the folder already is not run again, so that a hunt that was ended goes
on. What stands under "Judgements" in the page is written by hand, and kept.

    python benchmarks/hunt.py FOLDER [--minutes 20] [--release sglang==0.5.23]
    python benchmarks/hunt.py FOLDER --minutes 0 --write reports/hunt.md
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec
from pages import add_write, publish

from fuzzgraph import releases
from fuzzgraph.compatibility import released_targets
from fuzzgraph.run.events import RunSummary

_BY_HAND = "## Judgements"


def run(target: str, release: str, minutes: int, seed: int, out: Path) -> None:
    """One campaign; its exit code says nothing here, its summary does."""
    command = [
        sys.executable, "-m", "fuzzgraph", "run", "--target", target, "--release", release,
        "--time", f"{minutes}m", "--seed", str(seed), "--out", str(out),
    ]  # fmt: skip
    print(target, release, file=sys.stderr, flush=True)
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def summaries(folder: Path) -> list[RunSummary]:
    """Those of the runs that came to an end, by target and release."""
    decode = msgspec.json.Decoder(RunSummary).decode
    found = [decode(path.read_bytes()) for path in sorted(folder.glob("*/summary.json"))]
    return sorted(found, key=lambda one: (one.setup.target, one.setup.release, one.seed))


def row(one: RunSummary) -> str:
    found = ", ".join(f"`{reported.id}`" for reported in one.findings) or "none"
    return (
        f"| `{one.setup.target}` | {one.setup.release} | {one.seed} | {one.seconds / 60:.0f} |"
        f" {one.cases} | {one.steps} | {one.skipped} | {found} |"
    )


def page(runs: list[RunSummary], before: str) -> str:
    """The table, and what was written by hand."""
    minutes = sum(one.seconds for one in runs) / 60
    lines = [
        "# The hunt",
        "",
        "Campaigns on released engines, several at a time, on a CPU: the corpus first, then new",
        "cases until the time is up. Written by `python benchmarks/hunt.py FOLDER --write",
        "reports/hunt.md` from the summaries of the runs; the judgements are by hand.",
        "",
        "| target | release | seed | minutes | cases | steps | skipped | findings |",
        "|---|---|---|---|---|---|---|---|",
        *map(row, runs),
        "",
        f"{sum(one.cases for one in runs)} cases in {minutes:.0f} minutes. Skipped are saved cases"
        " of other targets",
        "and drawn ones that contradict themselves.",
        "",
    ]
    by_hand = before.partition(_BY_HAND)[2]
    return "\n".join(lines) + (f"\n{_BY_HAND}{by_hand}" if by_hand else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--release", default="sglang==0.5.23", metavar="PACKAGE==VERSION")
    parser.add_argument("--seed", type=int, default=1)
    add_write(parser)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    done = {(one.setup.target, one.setup.release) for one in summaries(options.folder)}
    package, release = releases.parse(options.release)
    for target in released_targets(package) if options.minutes else ():
        if (target, release) not in done:
            out = options.folder / f"{target}-{release}-{options.seed}"
            run(target, release, options.minutes, options.seed, out)
    before = options.write.read_text() if options.write and options.write.is_file() else ""
    text = page(summaries(options.folder), before)
    publish(text, options)


if __name__ == "__main__":
    main()
