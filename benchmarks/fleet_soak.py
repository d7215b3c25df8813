"""A fleet whose Ray workers, driver and Redis server are killed at random; part of the soak.

Two shards on a planted fault that shows as several findings. Needs what `make fleet` installs, and
redis-server.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fuzzgraph.case import load_case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.run.events import RunSummary
from tests.fleet.drivers import Driver, driver, seen
from tests.fleet.servers import BINARY, RedisServer, redis_server

__all__ = ["Torn", "half_written", "missing", "rows", "torn_fleet"]

FAULT = "sglang-pr-24587-kv-indices-in-pages"
KINDS = ("Ray worker", "Redis", "Ray worker", "driver")
"""In turns."""
_REDIS_AWAY = 5.0
"""Seconds until a killed server is started again."""


@dataclass
class Torn:
    """What became of the run."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(dict.fromkeys(KINDS), 0))
    summary: RunSummary | None = None
    seen: set[str] = field(default_factory=set)
    half_written: list[str] = field(default_factory=list)


def missing() -> str:
    """What this part needs and has not; '' for nothing."""
    absent = [name for name in ("ray", "redis") if importlib.util.find_spec(name) is None]
    return ", ".join([*absent, *([] if BINARY else ["redis-server"])])


def half_written(out: Path) -> list[str]:
    """Cases of findings and of the corpus that cannot be read."""
    bad = []
    names = ("findings/*/case.json", "findings/*/found.json", "corpus/*.json")
    for path in itertools.chain.from_iterable(out.glob(name) for name in names):
        try:
            load_case(path)
        except InvalidCase as error:
            bad.append(str(error))
    return bad


def torn_fleet(folder: Path, seconds: float, chance: random.Random, kills: int) -> Torn:
    """One run until its end, through so many kills."""
    torn = Torn()
    run = ["fleet", "run", "--fault", FAULT, "--shards", "2", "--seed", "1", "--out", "run"]
    moments = sorted(chance.uniform(0.1, 0.85) * seconds for _ in range(kills))
    plan = list(zip(moments, itertools.cycle(KINDS), strict=False))
    with redis_server(folder) as server:
        words = [*run, "--time", f"{seconds:g}s", "--database", server.url]
        begun: float | None = None
        while words:
            with driver(folder, *words) as one:
                words = []
                for now in _looks(one, folder, begun):
                    begun = now if begun is None else begun
                    if not plan or now - begun < plan[0][0] or not _ready(plan[0][1], one):
                        continue
                    kind = plan.pop(0)[1]
                    torn.kills[kind] += 1
                    torn.half_written += half_written(folder / "run")
                    if kind == "driver":
                        one.process.send_signal(signal.SIGKILL)
                        words = ["resume", "run", "--database", server.url]
                        break
                    _kill(kind, one, server, chance)
    torn.seen = seen(folder)
    torn.half_written += half_written(folder / "run")
    text = (folder / "run" / "summary.json").read_bytes()
    torn.summary = msgspec.json.decode(text, type=RunSummary)
    return torn


def _looks(one: Driver, folder: Path, begun: float | None) -> Iterator[float]:
    """The time, now and then, from the first event of the run to the end of the driver."""
    while one.process.poll() is None:
        if begun is not None or any(folder.glob("run/events-*.jsonl")):
            yield time.monotonic()
        time.sleep(0.1)


def _ready(kind: str, one: Driver) -> bool:
    """Whether there is something to kill; a worker takes seconds to come back."""
    return kind != "Ray worker" or bool(one.ray_workers())


def _kill(kind: str, one: Driver, server: RedisServer, chance: random.Random) -> None:
    if kind == "Redis":
        server.kill()
        time.sleep(_REDIS_AWAY)
        server.start()
        return
    try:
        os.kill(chance.choice(one.ray_workers()), signal.SIGKILL)
    except (ProcessLookupError, IndexError):
        return  # it has just ended by itself


def rows(torn: Torn) -> list[str]:
    """The part of the report."""
    assert torn.summary is not None
    names = [one.id for one in torn.summary.findings]
    lost = sorted(torn.seen - set(names))
    twice = sorted({name for name in names if names.count(name) > 1})
    told = [f"{count} x {kind}" for kind, count in torn.kills.items()]
    return [
        "## A fleet",
        "",
        "Two shards on a Ray cluster and a Redis server on this machine, the built-in engine with",
        f"planted fault `{FAULT}`:",
        "",
        "| | |",
        "|---|---|",
        f"| kills by SIGKILL | {', '.join(told)} |",
        f"| cases | {torn.summary.cases} |",
        f"| findings seen in any log, of a machine or of the driver | {len(torn.seen)} |",
        f"| findings reported | {len(names)} |",
        f"| seen and lost | {', '.join(lost) or 'none'} |",
        f"| reported twice | {', '.join(twice) or 'none'} |",
        f"| files half written | {len(torn.half_written)} |",
        f"| came to its end by | {torn.summary.reason} |",
    ]
