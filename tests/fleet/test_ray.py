"""A run on a real Ray cluster, whose workers, driver and Redis server are killed in mid-run."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.fleet.ports import descendants, listening
from fuzzgraph.run.events import RunSummary
from tests.fleet.drivers import driver, seen
from tests.fleet.servers import BINARY, WHY_NOT, redis_server

FAULT = "sglang-pr-24587-kv-indices-in-pages"
PATIENCE = 240.0

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None or importlib.util.find_spec("redis") is None,
        reason="needs ray and redis ('make fleet' installs them)",
    ),
]


def wait_for(what: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Until something is there, the process has ended or patience has."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert process.poll() is None, "the driver ended first"
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def whole_report(folder: Path) -> RunSummary:
    summary = msgspec.json.decode((folder / "run" / "summary.json").read_bytes(), type=RunSummary)
    names = [one.id for one in summary.findings]
    assert len(names) == len(set(names)), "each once"
    assert seen(folder) <= set(names), "none lost"
    return summary


RUN = ("fleet", "run", "--fault", FAULT, "--shards", "2", "--seed", "1", "--out", "run")


@pytest.mark.skipif(BINARY is None, reason=WHY_NOT)
def test_killed_ray_workers_and_a_killed_redis_cost_no_finding(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as server,
        driver(tmp_path, *RUN, "--time", "25s", "--database", server.url) as one,
    ):
        wait_for(lambda: seen(tmp_path), one.process)
        for pid in one.ray_workers():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(one.ray_workers()) == 2, one.process)
        server.kill()
        assert one.wait() == 1
    summary = whole_report(tmp_path)
    lines = "\n".join(summary.bad_entries)
    assert "shard 0 was lost" in lines
    assert "examples are kept in .fuzzgraph/examples" in lines
    assert summary.reason == "time"


def test_a_cluster_of_ours_listens_on_loopback_only(tmp_path: Path) -> None:
    with driver(tmp_path, *RUN, "--time", "15s") as one:
        wait_for(one.ray_workers, one.process)
        family = descendants(one.process.pid)
        assert listening(family), "it listens somewhere"
        assert not listening(family, beyond_loopback=True)
        assert one.wait() == 1


def test_a_killed_driver_is_taken_up_by_resume(tmp_path: Path) -> None:
    with driver(tmp_path, *RUN, "--time", "20s") as one:
        wait_for(lambda: list(tmp_path.glob("run/findings/*/found.json")), one.process)
        one.ray_workers()
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()
    before = seen(tmp_path)
    with driver(tmp_path, "resume", "run") as again:
        assert again.wait() == 1
    summary = whole_report(tmp_path)
    assert before
    assert before <= {reported.id for reported in summary.findings}


def test_sigint_ends_every_shard_with_a_report(tmp_path: Path) -> None:
    with driver(tmp_path, *RUN, "--time", "1h") as one:
        wait_for(lambda: list(tmp_path.glob("run/findings/*/found.json")), one.process)
        one.process.send_signal(signal.SIGINT)
        assert one.wait() == 1
    assert whole_report(tmp_path).reason == "interrupted"
