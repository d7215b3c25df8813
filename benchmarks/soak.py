"""Leaves a campaign alone with a saboteur, kills worker and parent at random, counts what is left.

    python benchmarks/soak.py --minutes 30 --write reports/soak.md

Three parts: an undisturbed search in which only the worker is killed now and then (memory, budget,
findings), a search whose parent is killed and resumed over and over, and a fleet whose Ray workers,
driver and Redis server are killed (`fleet_soak.py`). What isolation costs is `isolation.py`'s.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import fleet_soak
from fleet_soak import half_written
from pages import add_write, publish
from saboteur import FLAKY, PLANTED

from fuzzgraph.campaign.reports import rebuilt
from fuzzgraph.case import Case, encode_case
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import CampaignStarted, RunSummary
from fuzzgraph.worker import Limits, WorkerClient, open_client

HERE = Path(__file__).parent
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BUDGET_SLACK = 0.02
_MEMORY_SLACK = 0.10


def drive(out: Path, seconds: float) -> None:
    """One campaign on the saboteur in this process, resumed where the folder holds one."""
    import msgspec
    from saboteur import Saboteur

    from fuzzgraph.campaign import run_campaign
    from fuzzgraph.campaign.export import no_export
    from fuzzgraph.campaign.resume import load_run_state, resumed_spec
    from fuzzgraph.open_target import Opened
    from fuzzgraph.run.events import Setup
    from fuzzgraph.run.spec import Budget, RunSpec

    stages = {**Limits().stage_seconds, "eager": 1.5}
    limits = replace(Limits(), stage_seconds=stages, memory_bytes=1 << 30)
    setup = Setup(target="saboteur:Saboteur")
    client = open_client(setup, paths=[HERE], limits=limits)
    runner = RecordingBackend(client, out)
    opened = Opened(setup, Saboteur(), runner, client.close, lambda: client.deaths, client.cut_off)
    plan = RunSpec(setup=setup, seed=1, budget=Budget(seconds), out=str(out), shrink_seconds=25.0)
    state = None
    if _begun(out):
        state = load_run_state(out)
        plan = msgspec.structs.replace(resumed_spec(state, out, seconds), shrink_seconds=25.0)
    run_campaign(plan, lambda event: None, opened=opened, export=no_export, state=state)
    opened.close()


class RecordingBackend:
    """Writes down what every case of the search showed before the campaign hears of it."""

    def __init__(self, runner: WorkerClient, out: Path) -> None:
        self._runner = runner
        self._out = out

    def run_case(self, case: Case) -> Verdict:
        verdict = self._runner.run_case(case)
        searched = (self._out / "running.json").read_bytes() == encode_case(case)
        if verdict.findings and searched:
            with (self._out / "seen.txt").open("a") as seen:
                seen.writelines(f"{finding.buffer}\n" for finding in verdict.findings)
        return verdict

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        return self._runner.confirm(case, finding, times)


def _seen(out: Path) -> set[str]:
    try:
        return set((out / "seen.txt").read_text().splitlines())
    except OSError:
        return set()


def _begun(out: Path) -> bool:
    log = out / "events.jsonl"
    return log.is_file() and any(isinstance(one, CampaignStarted) for one in read_log(log)[0])


@dataclass
class Watched:
    """What was seen of a driver from outside."""

    seconds: float = 0.0
    """From its first event to its end."""
    worker_kills: int = 0
    parent_kills: int = 0
    resident: list[int] = field(default_factory=list)
    half_written: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


def children(pid: int) -> Iterator[int]:
    """Direct children of a process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                yield int(entry.name)


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def start(out: Path, seconds: float) -> subprocess.Popen[bytes]:
    words = [sys.executable, str(HERE / "soak.py"), "--drive", str(out), str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def undisturbed(out: Path, seconds: float, chance: random.Random, kills: int) -> Watched:
    """One driver until its end; its worker is killed now and then."""
    watched = Watched()
    driver = start(out, seconds)
    while driver.poll() is None and not _begun(out):
        time.sleep(0.02)
    begin = time.monotonic()
    moments = sorted(chance.uniform(0.1, 0.9) * seconds for _ in range(kills))
    while driver.poll() is None:
        now = time.monotonic() - begin
        watched.resident.append(resident(driver.pid))
        if moments and now > moments[0] and (workers := list(children(driver.pid))):
            moments.pop(0)
            os.kill(workers[0], signal.SIGKILL)
            watched.worker_kills += 1
        time.sleep(0.5)
    watched.seconds = time.monotonic() - begin
    if driver.returncode:
        sys.exit(f"the campaign ended with exit code {driver.returncode}")
    return watched


def torn(out: Path, seconds: float, chance: random.Random, kills: int) -> Watched:
    """A driver that is killed at random instants and resumed until the budget is spent."""
    watched = Watched()
    begin = time.monotonic()
    for _ in range(kills):
        driver = start(out, seconds)
        try:
            driver.wait(chance.uniform(0.5, 3.0 + seconds / kills))
        except subprocess.TimeoutExpired:
            driver.kill()
            watched.parent_kills += 1
        driver.wait()
        watched.half_written += half_written(out)
    if start(out, seconds).wait():
        sys.exit("the resumed campaign failed")
    watched.seconds = time.monotonic() - begin
    return watched


@dataclass
class Score:
    found: list[str]
    unmet: list[str]
    """Planted, and no case of the search met it."""
    lost: list[str]
    """Seen by the recording_backend, and not reported."""
    twice: list[str]
    beside: list[str]
    """Findings that nobody planted."""


def score(summary: RunSummary, seen: set[str]) -> Score:
    names = [reported.finding.buffer for reported in summary.findings]
    also = {other.buffer for reported in summary.findings for other in reported.also}
    return Score(
        sorted(set(names) & set(PLANTED)),
        sorted(set(PLANTED) - set(names) - seen),
        sorted(seen - set(names) - also),
        sorted({name for name in names if names.count(name) > 1}),
        sorted(set(names) - set(PLANTED)),
    )


def _left(summary: RunSummary) -> str:
    """Findings that were reported without a rate, or without a shrunk case."""
    kinds = {
        kind: sum(kind in one.left for one in summary.findings) for kind in ("confirm", "shrink")
    }
    return ", ".join(f"{count} to {kind}" for kind, count in kinds.items() if count) or "nothing"


def page(
    calm: Watched, calm_run: RunSummary, rough: Watched, rough_run: RunSummary,
    fleet: list[str], seconds: float, command: str,
) -> str:  # fmt: skip
    """The report."""
    steady = calm.resident[len(calm.resident) // 5 :]
    quarter = max(1, len(steady) // 4)
    early = sum(steady[:quarter]) / quarter
    late = sum(steady[-quarter:]) / quarter
    growth = late / early - 1.0
    over = max(calm.seconds / seconds - 1.0, 0.0)
    scores = score(calm_run, calm.seen), score(rough_run, rough.seen)
    lines = [
        "# Soak",
        "",
        "What a campaign makes of a target that crashes, hangs, hogs, floods, lies and corrupts",
        f"(`benchmarks/saboteur.py`), on {os.cpu_count()} cores, which {os.getloadavg()[2]:.1f} "
        "processes wanted in the last quarter of an hour:",
        "",
        f"    {command}",
        "",
        "| | worker killed | parent killed and resumed |",
        "|---|---|---|",
        f"| search | {calm_run.seconds:.0f} s | {rough_run.seconds:.0f} s |",
        f"| with all ends | {calm.seconds:.0f} s | {rough.seconds:.0f} s |",
        f"| kills by SIGKILL | {calm.worker_kills} | {rough.parent_kills} |",
        f"| cases | {calm_run.cases} | {rough_run.cases} |",
        f"| deaths of the engine's process | {calm_run.deaths} | {rough_run.deaths} |",
    ]
    rows = {
        "planted findings reported": [f"{len(one.found)} of {len(PLANTED)}" for one in scores],
        "not met by any case": [", ".join(one.unmet) or "none" for one in scores],
        "seen and lost": [", ".join(one.lost) or "none" for one in scores],
        "left for lack of time": [_left(one) for one in (calm_run, rough_run)],
        "reported twice": [", ".join(one.twice) or "none" for one in scores],
        "beside what was planted": [", ".join(one.beside) or "none" for one in scores],
        "files half written": [str(len(one.half_written)) for one in (calm, rough)],
    }
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    lines += [
        "",
        "| | measured | bound |",
        "|---|---|---|",
        f"| from the first event to the end of the process, beyond the budget of {seconds:.0f} s "
        f"| {over:.1%} | {_BUDGET_SLACK:.0%} |",
        f"| memory of the parent, last quarter against the first one after the start | "
        f"{growth:+.1%} ({early / 2**20:.0f} to {late / 2**20:.0f} MiB) | {_MEMORY_SLACK:.0%} |",
        "",
        "| planted | rate in fresh children |",
        "|---|---|",
    ]
    rates = {one.finding.buffer: one.finding.confirmed for one in calm_run.findings}
    lines += [
        f"| `{name}`: {words} | {rates.get(name, 'not found') or 'not tried'}"
        f"{' (planted to show half of the time)' if name in FLAKY else ''} |"
        for name, words in PLANTED.items()
    ]
    return "\n".join([*lines, "", *fleet]) + "\n"


def fleet_part(folder: Path, seconds: float, chance: random.Random, kills: int) -> list[str]:
    """The fleet's part of the report, or why there is none."""
    missing = fleet_soak.missing()
    if missing:
        return ["## A fleet", "", f"Not run: {missing} is missing (`make fleet`)."]
    place = folder / "fleet"
    place.mkdir()
    return fleet_soak.rows(fleet_soak.torn_fleet(place, seconds, chance, kills))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of the undisturbed search")
    parser.add_argument("--kills", type=int, default=20, help="of the parent")
    parser.add_argument("--fleet-kills", type=int, default=12, help="of Ray workers, Redis, driver")
    parser.add_argument("--seed", type=int, default=1)
    add_write(parser)
    parser.add_argument("--drive", nargs=2, metavar=("OUT", "SECONDS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        drive(Path(asked.drive[0]), float(asked.drive[1]))
        return
    chance = random.Random(asked.seed)
    seconds = asked.minutes * 60.0
    command = (
        f"python benchmarks/soak.py --minutes {asked.minutes:g} --kills {asked.kills} "
        f"--fleet-kills {asked.fleet_kills}"
    )
    with tempfile.TemporaryDirectory() as folder:
        calm_out, rough_out = Path(folder, "calm"), Path(folder, "rough")
        calm_out.mkdir()
        rough_out.mkdir()
        calm = undisturbed(calm_out, seconds, chance, kills=20)
        calm.half_written, calm.seen = half_written(calm_out), _seen(calm_out)
        calm_run = rebuilt(calm_out)
        rough = torn(rough_out, max(seconds / 3, 120.0), chance, asked.kills)
        rough.seen = _seen(rough_out)
        fleet = fleet_part(Path(folder), max(seconds / 8, 150.0), chance, asked.fleet_kills)
        text = page(calm, calm_run, rough, rebuilt(rough_out), fleet, seconds, command)
    publish(text, asked)


if __name__ == "__main__":
    main()
