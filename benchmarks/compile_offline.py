"""Compiles, without a GPU, the Triton kernels that targets launch; says what compilers refuse.

    python benchmarks/compile_offline.py [TARGET...] [--release sglang==0.5.23,...] \
        [--out FOLDER] [--kept] [--write reports/compiled.md]
    python benchmarks/compile_offline.py --one TARGET [--path FOLDER] [--shapes 8x8,16x16]

The first call runs the second one for each target on each release, and keeps what it said in
FOLDER: a target that has its file there is not run again. The second one prints JSON, a line for
each shape and for each kernel on each architecture.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

from compiled.page import page
from pages import add_write, publish

from fuzzgraph import releases
from fuzzgraph.targets import BUILT_IN

RELEASES = "flashinfer-python==0.7.2,sglang==0.5.23,vllm==0.33.0,sglang==0.5.13,sglang==0.5.12"
SECONDS = 1800
"""The longest that one target may take."""


def of_one(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What a target launches at each shape, and what came of it on each architecture."""
    from compiled.architectures import ARCHITECTURES, BY_NAME

    names = list(filter(None, asked.architectures.split(",")))
    architectures = [BY_NAME[name] for name in names] or ARCHITECTURES
    from fuzzgraph.reference.triton_ready import ready_triton

    ready_triton()
    from compiled.compiling import compile_all
    from compiled.drawing import noted, opened, use_device_dtypes

    from fuzzgraph.strategies import profile_named

    target = opened(asked.one, asked.path)
    profile = profile_named(asked.profile)
    drawn = use_device_dtypes(target, profile)
    if drawn.refused:
        yield {"not_on_device": drawn.refused}
    ends = dict.fromkeys([*drawn.shapes[:1], *drawn.shapes[-1:]])
    shapes = list(filter(None, asked.shapes.split(","))) or list(() if profile.served else ends)
    seen: set[Any] = set()
    for shape, kept, notes in noted(target, asked.cases, asked.seed, shapes, profile):
        every = [note for note in notes.all() if note.key() not in seen]
        fresh = first_of_each(every, asked.most)
        seen.update(note.key() for note in fresh)
        yield {
            "shape": shape,
            "kept": kept,
            "launches": notes.launches,
            "left_out": len(every) - len(fresh),
            "unread": notes.unread,
        }
        for outcome in compile_all(fresh, architectures):
            note = fresh[outcome.note]
            yield {
                "kernel": note.name,
                "module": note.module,
                "shape": shape,
                "floats": note.floats(),
                "drawn": drawn.has(shape, note.floats()),
                "architecture": outcome.architecture,
                "kind": outcome.kind,
                "why": outcome.why,
            }


def first_of_each(notes: Sequence[Any], most: int) -> list[Any]:
    """So many of each kernel with the same kinds of floats; all of them for 0."""
    counts: dict[Any, int] = {}
    chosen = []
    for note in notes:
        kind = note.module, note.name, note.floats()
        counts[kind] = counts.get(kind, 0) + 1
        if not most or counts[kind] <= most:
            chosen.append(note)
    return chosen


def run(target: str, release: str, out: Path, asked: argparse.Namespace) -> None:
    """Put what came of a target on a release into its file, whole or not at all."""
    file = out / f"{target} {release or 'here'}.jsonl"
    if file.exists():
        return
    command = [sys.executable, __file__, "--one", target, "--cases", str(asked.cases)]
    command += ["--most", str(asked.most), "--seed", str(asked.seed)]
    if release:
        command += ["--path", str(releases.ensure(*releases.parse(release)))]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(out / "triton-cache")}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        said, code, errors = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as error:
        said, code, errors = (error.stdout or b"").decode(), -1, f"not done in {SECONDS} s"
    if code:
        last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
        last = last.removeprefix("fuzzgraph.errors.AdapterUnavailable: ")
        said = said[: said.rfind("\n") + 1] + json.dumps({"failed": last}) + "\n"
    file.with_suffix(".new").write_text(said)
    file.with_suffix(".new").replace(file)
    print(f"{target} {release}: {len(said.splitlines())} lines", file=sys.stderr, flush=True)


def chosen(asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Every target with every release it is to run on, release by release; "" for one that needs
    none."""
    of = {
        name: package for name, package in _packages() if name in asked.targets or not asked.targets
    }
    yield from ((name, "") for name in of if not of[name])
    for release in asked.release.split(","):
        package = release.partition("==")[0]
        yield from ((name, release) for name in of if of[name] == package)


def _packages() -> Iterator[tuple[str, str]]:
    """Target -> the distribution of its engine; "" for the built-in one."""
    from fuzzgraph.targets.packages import distribution_of

    for row in BUILT_IN:
        package = str(getattr(row.open(), "package", ""))
        yield row.name, distribution_of(package) if package else ""


def read(out: Path, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[Any]]:
    """What is kept of each target."""
    return {
        (target, release): list(map(json.loads, file.read_text().splitlines()))
        for target, release in wanted
        if (file := out / f"{target} {release or 'here'}.jsonl").exists()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", help="all that are built in without any")
    parser.add_argument("--release", default=RELEASES, help="with commas between")
    parser.add_argument("--cases", type=int, default=4, help="drawn for each target")
    parser.add_argument("--most", type=int, default=3, help="of a kernel at one shape; 0 for all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keeps what each target said")
    parser.add_argument("--kept", action="store_true", help="run nothing: the page of what OUT has")
    parser.add_argument("--one", metavar="TARGET", help="print JSON of this one")
    parser.add_argument("--path", type=Path, help="folder of its engine's release")
    shapes = "e.g. 16x8, with commas between; the narrowest and the widest drawn without any"
    parser.add_argument("--shapes", default="", help=shapes)
    parser.add_argument("--profile", default="ci", help="device: shapes of servers, with --one")
    parser.add_argument("--architectures", default="", help="e.g. sm_90, with commas between")
    add_write(parser)
    asked = parser.parse_args()
    if asked.one:
        for line in of_one(asked):
            print(json.dumps(line), flush=True)
        return
    with tempfile.TemporaryDirectory() as aside:
        out = asked.out or Path(aside)
        out.mkdir(parents=True, exist_ok=True)
        wanted = list(chosen(asked))
        for target, release in () if asked.kept else wanted:
            run(target, release, out, asked)
        found = read(out, wanted)
        missing = [each for each in wanted if each not in found]
        publish(page(found, missing, asked.cases, asked.most), asked)


if __name__ == "__main__":
    main()
