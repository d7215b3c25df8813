"""Cases shared by a folder, by a real Redis server and by a GitHub artifact."""

from __future__ import annotations

import socket
import zipfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from fuzzgraph.campaign import run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.case import Case, digest
from fuzzgraph.case_database import open_database
from fuzzgraph.errors import UsageError
from fuzzgraph.open_target import Opened
from fuzzgraph.run.events import Event, RunSummary, Setup
from fuzzgraph.run.spec import Budget, RunSpec, checked_database
from tests.fakes import FakeRunner, FakeTarget, case, paged
from tests.fleet.artifacts import LISTING, STORAGE, ZIP, Artifacts, github, zipped
from tests.fleet.servers import BINARY, WHY_NOT, redis_server

needs_redis = pytest.mark.skipif(BINARY is None, reason=WHY_NOT)


def redis_client() -> None:
    pytest.importorskip("redis", reason="needs the package redis ('make fleet' installs it)")


def run(out: Path, runner: FakeRunner, database: str, *, seed: int = 1) -> RunSummary:
    out.mkdir()
    opened = Opened(Setup(), FakeTarget(), runner, lambda: None)
    plan = RunSpec(out=str(out), seed=seed, budget=Budget(None, 60), database=database)
    return run_campaign(plan, events.append, opened=opened, export=no_export)


events: list[Event] = []


def test_the_next_run_begins_with_what_the_last_one_shared(tmp_path: Path) -> None:
    database = f"dir:{tmp_path / 'shared'}"
    first = run(tmp_path / "a", FakeRunner(paged), database)
    again = FakeRunner(paged)
    second = run(tmp_path / "b", again, database, seed=2)
    assert second.corpus_cases > 10
    shrunk = first.findings[0].case
    assert shrunk in again.ran[: second.corpus_cases], "what showed a finding is shared shrunk"
    assert [one.source for one in second.findings] == ["corpus"]


def test_only_what_covers_a_new_pair_is_shared_again(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    run(tmp_path / "a", FakeRunner(), f"dir:{folder}")
    before = len(open_database(f"dir:{folder}").fetch("builtin").entries)
    summary = run(tmp_path / "b", FakeRunner(), f"dir:{folder}")
    after = len(open_database(f"dir:{folder}").fetch("builtin").entries)
    assert after == before, "the same seed covers nothing new"
    assert summary.corpus_cases == before


def test_a_shared_case_that_is_damaged_costs_itself_and_is_named(tmp_path: Path) -> None:
    from hypothesis.database import DirectoryBasedExampleDatabase

    examples = open_database(f"dir:{tmp_path}")
    examples.save("fake", case(2))
    database = DirectoryBasedExampleDatabase(tmp_path)
    database.save(b"fuzzgraph.cases.1:fake", b'{"half": ')
    loaded = open_database(f"dir:{tmp_path}").fetch("fake")
    assert [entry.case for entry in loaded.entries] == [case(2)]
    assert len(loaded.bad) == 1


def test_cases_of_one_target_are_not_those_of_another(tmp_path: Path) -> None:
    examples = open_database(f"dir:{tmp_path}")
    examples.save("one", case(2))
    assert examples.fetch("two").entries == []


@needs_redis
def test_cases_cross_a_real_redis_server(tmp_path: Path) -> None:
    redis_client()
    with redis_server(tmp_path) as server:
        run(tmp_path / "a", FakeRunner(paged), server.url)
        summary = run(tmp_path / "b", FakeRunner(paged), server.url, seed=2)
    assert summary.corpus_cases > 10
    assert summary.bad_entries == ()


@needs_redis
def test_a_server_that_dies_in_mid_run_costs_no_case_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_client()
    monkeypatch.chdir(tmp_path)
    with redis_server(tmp_path) as server:

        class Killing(FakeRunner):
            def run_case(self, case: Case) -> object:  # type: ignore[override]
                if len(self.ran) == 10:
                    server.kill()
                return super().run_case(case)

        summary = run(tmp_path / "a", Killing(paged), server.url)
        [line] = summary.bad_entries
        assert "redis://" in line and "examples are kept in .fuzzgraph/examples" in line
        assert [one.finding.confirmed for one in summary.findings] == ["3/3"]
        near = {
            one.digest for one in open_database("dir:.fuzzgraph/examples").fetch("builtin").entries
        }
        server.start()
        both = {one.digest for one in open_database(server.url).fetch("builtin").entries}
    assert near < both, "some are on the server, the rest here, and both are read"
    assert digest(summary.findings[0].case) in both


def test_an_unreachable_server_falls_back_to_the_folder_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_client()
    monkeypatch.chdir(tmp_path)
    summary = run(tmp_path / "a", FakeRunner(paged), "redis://someone:secret@127.0.0.1:1/0")
    [line] = summary.bad_entries
    assert line.startswith("redis://***@127.0.0.1:1/0: ")
    assert line.endswith("examples are kept in .fuzzgraph/examples")
    assert open_database("dir:.fuzzgraph/examples").fetch("builtin").entries


@needs_redis
def test_what_a_server_missed_is_handed_over_when_it_is_back(tmp_path: Path) -> None:
    redis_client()
    with redis_server(tmp_path) as server:
        examples = open_database(server.url, tmp_path / "near")
        server.kill()
        examples.save("fake", case(3))
        server.start()
        examples.close()
        fresh = open_database(server.url, tmp_path / "nothing")
        assert [entry.case for entry in fresh.fetch("fake").entries] == [case(3)]


def test_an_artifact_is_read_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = open_database(f"dir:{tmp_path / 'night'}")
    night.save("fake", case(4))
    cache = tmp_path / "artifacts"
    cache.mkdir()
    stamp = datetime.now(timezone.utc).isoformat().replace(":", "_")
    with zipfile.ZipFile(cache / f"{stamp}.zip", "w") as artifact:
        for path in sorted((tmp_path / "night").rglob("*")):
            artifact.write(path, path.relative_to(tmp_path / "night"))
    monkeypatch.setenv("FUZZGRAPH_ARTIFACTS", str(cache))
    examples = open_database("github:someone/engine", tmp_path / "near")
    assert [entry.case for entry in examples.fetch("fake").entries] == [case(4)]
    examples.save("fake", case(1))
    here = open_database(f"dir:{tmp_path / 'near'}")
    assert [entry.case for entry in here.fetch("fake").entries] == [case(1)]
    assert examples.notes == []


@pytest.fixture
def no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without examples and artifacts, and a token that is no secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_TOKEN", "token")
    monkeypatch.setenv("FUZZGRAPH_ARTIFACTS", str(tmp_path / "artifacts"))


def archive(tmp_path: Path, shared: Case) -> bytes:
    """The artifact of a night that shared one case for target `builtin`."""
    open_database(f"dir:{tmp_path / 'night'}").save("builtin", shared)
    return zipped(tmp_path / "night")


@pytest.mark.usefixtures("no_token")
def test_a_run_begins_with_the_newest_artifact_which_is_fetched_once(tmp_path: Path) -> None:
    with github() as server:
        server.offer(archive(tmp_path, case(4)))
        runner = FakeRunner(paged)
        summary = run(tmp_path / "a", runner, "github:someone/engine")
        assert (summary.corpus_cases, summary.bad_entries) == (1, ())
        assert runner.ran[0] == case(4)
        run(tmp_path / "b", FakeRunner(paged), "github:someone/engine")
    assert server.asked == [
        (LISTING, "Bearer token"),
        (ZIP, "Bearer token"),
        (STORAGE, ""),  # a redirect must not carry the token along
    ]


def refused(server: Artifacts) -> None:
    server.answers = {LISTING: (401, b"{}")}


def gone(server: Artifacts) -> None:
    server.answers = {}


def of_another_name(server: Artifacts) -> None:
    server.offer(b"", name="hypothesis-example-db")


def no_json(server: Artifacts) -> None:
    server.answers[LISTING] = (200, b"<html>")


def no_list(server: Artifacts) -> None:
    server.answers[LISTING] = (200, b"{}")


def half_a_zip(server: Artifacts) -> None:
    server.answers[STORAGE] = (200, server.answers[STORAGE][1][:-20])


def silent(server: Artifacts) -> None:
    server.silent = True


FAILURES = {
    refused: "valid GITHUB_TOKEN",
    gone: "Could not get the latest artifact",
    of_another_name: "Couldn't acquire a new or existing artifact",
    no_json: "JSONDecodeError",
    no_list: "KeyError",
    half_a_zip: "artifact from GitHub is invalid",
    silent: "timed out",
}


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize(("fail", "said"), FAILURES.items(), ids=[f.__name__ for f in FAILURES])
def test_an_artifact_that_cannot_be_had_costs_one_line_and_the_folder_takes_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[Artifacts], None],
    said: str,
) -> None:
    monkeypatch.setattr("fuzzgraph.case_database._ANSWER_SECONDS", 0.2)
    open_database("dir:.fuzzgraph/examples").save("builtin", case(3))
    with github() as server:
        server.offer(archive(tmp_path, case(4)))
        fail(server)
        runner = FakeRunner(paged)
        summary = run(tmp_path / "a", runner, "github:someone/engine")
    [line] = summary.bad_entries
    assert line.startswith("github:someone/engine: ") and line.endswith("; it is left out")
    assert said in line
    assert summary.corpus_cases == 1 and runner.ran[0] == case(3)
    kept = open_database("dir:.fuzzgraph/examples").fetch("builtin").entries
    assert summary.findings[0].digest in {entry.digest for entry in kept}
    assert socket.getdefaulttimeout() is None, "the bound holds for the server alone"


BAD = ["redis", "redis:", "dir:", "github:owner", "github:a/b/c", "ftp://x", "postgres://x/y"]


@pytest.mark.parametrize("option", BAD)
def test_what_names_no_database_is_refused_with_the_forms(option: str) -> None:
    with pytest.raises(UsageError, match="is not a database URL. Use one of: dir:FOLDER, redis://"):
        checked_database(option)
