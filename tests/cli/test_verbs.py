"""What each verb prints, writes and exits with, on a runner without an engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from fuzzgraph import api, corpus
from fuzzgraph.case import Case, digest, encode_case, load_case
from fuzzgraph.cli.entry import run_command
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import ReportedFinding, finding_id
from fuzzgraph.run_options import checked_setup, replay_command
from fuzzgraph.shipped import CASES
from tests.fakes import FakeRunner, FakeVerdict, case, finding, no_exporting, opener, paged


def use(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner) -> FakeRunner:
    """Let every verb open this runner, and write no repro."""
    monkeypatch.setattr("fuzzgraph.campaign.open_setup", opener(runner))
    monkeypatch.setattr("fuzzgraph.campaign.run.Exporting", no_exporting)
    return runner


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(folder: Path, one: Case) -> Path:
    path = folder / "case.json"
    path.write_bytes(encode_case(one))
    return path


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    loaded = json.loads(capsys.readouterr().out)
    assert isinstance(loaded, dict)
    return loaded


def test_a_run_that_finds_nothing_exits_with_0_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner())
    assert run_command(["run", "--examples", "30", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert f"nothing found in {30 + len(shipped())} cases" in out
    assert "seed 1; builtin, recorder on cpu" in out


def test_a_run_that_finds_something_exits_with_1_and_leaves_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner(paged))
    assert run_command(["run", "--examples", "100", "--seed", "1", "--out", "r"]) == 1
    assert (
        "FINDING [critical] A decode replay writes memory past the end of kv_indices"
        in capsys.readouterr().out
    )
    left = {path.name for path in (folder / "r").iterdir()}
    assert left == {
        "events.jsonl",
        "summary.json",
        "summary.md",
        "report.html",
        "report.json",
        "report.sarif",
        "junit.xml",
        ".lock",
        "findings",
        "corpus",
    }
    assert "| footprint |" in (folder / "r" / "summary.md").read_text()
    (kept,) = (folder / "r" / "corpus").iterdir()
    assert kept.stem == digest(load_case(kept))


def test_run_json_is_the_summary_on_stdout_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner(paged))
    assert run_command(["run", "--examples", "100", "--seed", "1", "--out", "r", "--json"]) == 1
    summary = said(capsys)
    assert summary == json.loads((folder / "r" / "summary.json").read_text())
    assert summary["exit_code"] == 1
    assert summary["findings"][0]["finding"]["buffer"] == "kv_indices"


def test_a_run_that_breaks_exits_with_3_and_names_the_cause_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(FakeRunner):
        def run_case(self, case: Case) -> FakeVerdict:
            raise RuntimeError("the harness is at fault")

    use(monkeypatch, Broken())
    assert run_command(["run", "--examples", "3"]) == 3
    assert capsys.readouterr().err.endswith("fuzzgraph: RuntimeError: the harness is at fault\n")


def shipped() -> list[Case]:
    """The cases that come with FuzzGraph, by file name."""
    return [load_case(path) for path in sorted(CASES.glob("*.json"))]


def test_a_run_starts_with_the_cases_of_the_folder_of_the_project_and_with_those_of_fuzzgraph(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    for one in (case(2), shipped()[0]):
        corpus.add(folder / "corpus" / "cases", one)
    assert run_command(["run", "--examples", "0", "--out", "r"]) == 0
    assert len(runner.ran) == 1 + len(shipped())
    assert {digest(one) for one in runner.ran} == {digest(one) for one in (case(2), *shipped())}


def test_a_run_with_a_corpus_that_is_named_starts_with_that_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    (folder / "mine").mkdir()
    saved(folder / "mine", case(2))
    assert run_command(["run", "--examples", "0", "--corpus", "mine"]) == 0
    assert runner.ran == [case(2)]


def test_replay_of_a_case_that_shows_nothing_exits_with_0(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner())
    assert run_command(["replay", str(saved(folder, case(2, 1)))]) == 0
    assert "nothing found in" in capsys.readouterr().out


def found_beside(folder: Path, *options: str) -> Path:
    """A saved case beside the record of a finding that was found with these options."""
    path, one = saved(folder, case(2, 1)), finding()
    record = ReportedFinding(
        id=finding_id(one.key),
        finding=one,
        case=case(2, 1),
        digest=digest(case(2, 1)),
        case_path=str(path),
        replay=" ".join([replay_command(str(path), checked_setup()), *options]),
    )
    (folder / "finding.json").write_bytes(msgspec.json.encode(record))
    return path


@pytest.mark.parametrize("verb", [["replay"], ["shrink"], ["export", "--as", "script"]])
def test_a_case_that_shows_nothing_says_with_which_options_it_did(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: list[str],
) -> None:
    use(monkeypatch, FakeRunner())
    path = found_beside(folder, "--fault", "a-fault")
    assert run_command([verb[0], str(path), *verb[1:]]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"the finding beside it was found with: fuzzgraph replay {path}" in out
    assert out.endswith("--fault a-fault")


def test_a_case_that_is_run_with_the_same_options_says_nothing_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner())
    assert run_command(["replay", str(found_beside(folder))]) == 0
    assert "found with" not in capsys.readouterr().out


def test_the_folder_of_a_finding_names_its_case(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    assert run_command(["replay", str(saved(folder, case(2)).parent)]) == 0
    assert runner.ran == [case(2)]


def test_replay_of_a_case_that_shows_a_finding_exits_with_1_and_its_rate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner(paged))
    path = saved(folder, case(2, 1, page_size=16))
    assert run_command(["replay", str(path), "--times", "5", "--json"]) == 1
    record = said(capsys)
    assert record["digest"] == digest(case(2, 1, page_size=16))
    assert record["findings"][0]["confirmed"] == "5/5"
    assert record["exit_code"] == 1


def test_replay_finds_a_case_of_the_corpus_by_its_digest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    assert run_command(["corpus", "add", str(saved(folder, case(2)))]) == 0
    assert run_command(["replay", digest(case(2))[:8]]) == 0
    assert runner.ran == [case(2)]


def test_replay_of_a_case_beyond_the_target_is_a_wrong_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Narrow(FakeRunner):
        def run_case(self, case: Case) -> FakeVerdict:
            return FakeVerdict(skipped="captures decode graphs only")

    use(monkeypatch, Narrow())
    assert run_command(["replay", str(saved(folder, case(1)))]) == 2
    assert "cannot run it: captures decode graphs only" in capsys.readouterr().err


def test_shrink_writes_a_smaller_case_with_the_same_finding(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner(paged))
    path = saved(folder, case(4, 3, 2, 1, page_size=16))
    assert run_command(["shrink", str(path), "--out", "small.json", "--json"]) == 1
    small = load_case(folder / "small.json")
    assert len(small.steps) == 2
    assert paged(small)
    assert said(capsys)["finding"]["digest"] == digest(small)
    assert load_case(path) == case(4, 3, 2, 1, page_size=16)


def test_shrink_of_a_healthy_case_exits_with_0_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner())
    assert run_command(["shrink", str(saved(folder, case(1)))]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["case.json"]


def test_shrink_refuses_a_finding_that_does_not_show(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeRunner(paged))
    path = saved(folder, case(2, 1, page_size=16))
    assert run_command(["shrink", str(path), "--finding", "eager"]) == 2
    assert "finding='eager' does not show in this case. It shows:" in capsys.readouterr().err


def test_corpus_verbs_tell_what_they_did_as_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(folder, case(1))
    assert run_command(["corpus", "add", str(path), "--folder", "c", "--json"]) == 0
    assert said(capsys)["paths"] == [f"c/{digest(case(1))}.json"]
    assert run_command(["corpus", "merge", "c", "--folder", "d", "--json"]) == 0
    assert len(said(capsys)["added"]) == 1
    assert run_command(["corpus", "list", "d", "--json"]) == 0
    assert [entry["steps"] for entry in said(capsys)["cases"]] == [1]
    assert run_command(["corpus", "prune", "d", "--json"]) == 0
    assert said(capsys)["removed"] == []


def test_the_schema_accepts_a_case_and_refuses_an_unknown_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["schema"]) == 0
    schema = said(capsys)
    good = json.loads(encode_case(case(1, 2)))
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "color": "red"}, schema)


def test_the_published_schema_is_the_one_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    published = Path(__file__).resolve().parents[2] / "corpus" / "case.schema.json"
    assert run_command(["schema"]) == 0
    assert published.read_text() == capsys.readouterr().out


def test_the_doctor_says_what_is_missing_and_how_to_get_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in said(capsys)["checks"]}
    assert {"torch", "device", "triton", "dtypes", "releases"} <= set(checks)
    assert all(check["remedy"] for check in checks.values() if check["state"] != "ok")


def test_the_doctor_names_what_an_engine_lacks_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = ('nowhere_to_be_found>=1; extra == "vllm"', 'pytest>=8; extra == "vllm"')
    monkeypatch.setattr("fuzzgraph.targets.packages.requires", lambda _: stated)
    assert run_command(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in said(capsys)["checks"]}
    assert checks["vllm companions"]["found"] == "without nowhere_to_be_found"
    assert checks["vllm companions"]["remedy"].startswith("make vllm, ")


def test_the_doctor_says_whether_accesses_and_races_of_kernels_are_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")

    def told() -> dict[str, str]:
        assert run_command(["doctor", "--json"]) == 0
        checks = {check["name"]: check for check in said(capsys)["checks"]}
        found: dict[str, str] = checks["kernel checks"]
        return found

    assert told()["state"] == "ok"
    monkeypatch.setattr("fuzzgraph.lanes.versions.TESTED_TRITON", ("2.0", "2.1"))
    assert told()["state"] == "missing"
    assert "was not tested" in told()["found"]
    assert told()["remedy"] == "Use Triton 2.0 or 2.1."


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    out = capsys.readouterr().out
    for verb in ("run", "replay", "shrink", "export", "faults", "corpus", "targets", "doctor"):
        assert f"  {verb}" in out


def harmful(one: Case) -> tuple[Finding, ...]:
    """Wrong metadata, then what the same step does to memory of others."""
    table = msgspec.structs.replace(
        finding("contract", "metadata", "page_table", message="step 0: page_table is wrong"),
        symptom="broken_contract",
    )
    return (table, finding(message="step 0: 16 elements changed"))


def test_a_finding_has_the_same_severity_wherever_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = use(monkeypatch, FakeRunner(harmful))
    head = "FINDING [critical] In a decode replay, page_table is wrong"
    words = ["run", "--examples", "1", "--findings", "1", "--seed", "1", "--out", "r"]
    assert run_command(words) == 1
    assert head in capsys.readouterr().out
    (path,) = (folder / "r" / "findings").glob("contract-*/case.json")
    for command in (["replay"], ["shrink"]):
        assert run_command([*command, str(path)]) == 1
        assert head in capsys.readouterr().out
    assert run_command(["export", str(path), "--as", "issue", "--finding", "contract"]) == 1
    assert "Severity: critical" in capsys.readouterr().out

    monkeypatch.setattr("fuzzgraph.api.open_setup", opener(runner))
    with pytest.raises(api.FindingError, match=re.escape(head)):
        api.check(load_case(path), fault="not-opened")


def test_a_case_is_told_by_the_finding_that_its_folder_is_named_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = finding("noninterference", "reads", "attention"), finding()
    use(monkeypatch, FakeRunner(lambda one: (low, high) if len(one.steps) > 1 else ()))
    for named, wanted in ((low, "noninterference"), (high, "footprint")):
        place = folder / finding_id(named.key)
        place.mkdir()
        assert run_command(["replay", str(saved(place, case(1, 1))), "--json"]) == 1
        assert said(capsys)["findings"][0]["oracle"] == wanted
    assert run_command(["replay", str(saved(folder, case(1, 1))), "--json"]) == 1
    assert said(capsys)["findings"][0]["oracle"] == "footprint"
