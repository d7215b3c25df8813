"""The pytest plugin, on small projects held in strings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

import fuzzgraph.execution
import fuzzgraph.pytest_plugin.suite
import fuzzgraph.strategies
import fuzzgraph.targets
from fuzzgraph import corpus
from fuzzgraph.case import digest
from fuzzgraph.repro.files import file_names
from fuzzgraph.run.events import RunSummary
from tests.fakes import FakeRunner, FakeVerdict, case, no_exporting, opener, paged

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = (
    ()
    if "fuzzgraph" in {point.name for point in entry_points(group="pytest11")}
    else ("-p", "fuzzgraph.pytest_plugin")
)

# A module first imported by an inner pytest would be dropped, and torch cannot be imported twice.
LOADED = (
    fuzzgraph.pytest_plugin.suite,
    fuzzgraph.strategies,
    fuzzgraph.targets,
    fuzzgraph.execution,
)

ONE_TEST = "def test_mine():\n    assert True\n"


def use(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner) -> FakeRunner:
    """Let the plugin open this runner, and write no repro."""
    monkeypatch.setattr("fuzzgraph.pytest_plugin.suite.open_setup", opener(runner))
    monkeypatch.setattr("fuzzgraph.campaign.open_setup", opener(runner))
    monkeypatch.setattr("fuzzgraph.campaign.run.Exporting", no_exporting)
    return runner


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        *PLUGIN,
        *("-p", "no:cacheprovider", "-p", "no:timeout"),
        *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # the plugin is loaded already
        *arguments,
    )


def fuzz(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return run(pytester, "--fuzz", "--fuzz-examples", "100", "--fuzz-seed", "1", *arguments)


def run_summary(pytester: pytest.Pytester) -> RunSummary:
    (path,) = pytester.path.glob("reports/runs/*/summary.json")
    return msgspec.json.decode(path.read_bytes(), type=RunSummary)


def test_without_being_asked_the_plugin_adds_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONE_TEST)
    corpus.add(pytester.path / "corpus" / "cases", case(1))
    result = run(pytester)
    result.assert_outcomes(passed=1)
    assert "corpus" not in result.stdout.str()
    assert not (pytester.path / "reports").exists()


def test_fuzzing_needs_no_test_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    result = fuzz(pytester)
    result.assert_outcomes(passed=1)
    assert len(runner.ran) == 100
    result.stdout.fnmatch_lines(["*nothing found in 100 cases*seed 1; report in *reports/runs/*"])


def test_fuzzing_runs_the_projects_own_tests_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRunner())
    pytester.makepyfile(ONE_TEST)
    fuzz(pytester).assert_outcomes(passed=2)
    assert fuzz(pytester, "-k", "builtin").parseoutcomes() == {"passed": 1, "deselected": 1}


def test_a_finding_fails_the_item_and_reads_without_our_frames(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRunner(paged))
    result = fuzz(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*fuzz?builtin?*",
            "FINDING ?critical? A decode replay writes memory past the end of kv_indices",
            "*shows in 3 of 3 fresh sessions",
            "*step mode*raw/padded rows*",
            "*replay   fuzzgraph replay *case.json --target builtin",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "def runtest" not in result.stdout.str()


def test_the_failure_reaches_the_junit_report(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRunner(paged))
    fuzz(pytester, "--junit-xml=report.xml")
    root = ElementTree.parse(pytester.path / "report.xml").getroot()
    (failure,) = root.iter("failure")
    assert "kv_indices" in (failure.text or "")
    assert {one.get("name") for one in root.iter("property")} >= {"fuzzgraph_seed"}


def test_the_corpus_runs_as_tests_where_the_project_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRunner(paged))
    pytester.makeini("[pytest]\nfuzzgraph_corpus = saved\n")
    corpus.add(pytester.path / "saved", case(2, 1))
    corpus.add(pytester.path / "saved", case(2, 1, page_size=16))
    result = run(pytester, "-v")
    result.assert_outcomes(passed=1, failed=1)
    name = digest(case(2, 1, page_size=16))
    result.stdout.fnmatch_lines([f"*fuzzgraph::corpus?{name}?*FAILED*", "*kv_indices*"])


def test_the_corpus_stays_out_of_a_run_of_chosen_files(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    pytester.makeini("[pytest]\nfuzzgraph_corpus = saved\n")
    corpus.add(pytester.path / "saved", case(1))
    path = pytester.makepyfile(ONE_TEST)
    run(pytester, str(path)).assert_outcomes(passed=1)
    assert runner.ran == []


def test_the_corpus_of_an_option_runs_without_fuzzing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    corpus.add(pytester.path / "saved", case(1))
    run(pytester, "--fuzz-corpus", "saved").assert_outcomes(passed=1)
    assert runner.ran == [case(1)]


def test_the_projects_settings_are_those_of_its_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = use(monkeypatch, FakeRunner())
    (pytester.path / ".git").mkdir()
    settings = pytester.path / "fuzzgraph.toml"
    settings.write_text('examples = 20\nseed = 3\ncorpus = "kept"\n')
    corpus.add(pytester.path / "kept", case(1))
    result = run(pytester, "--fuzz")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"*settings of {settings}*", "*in 20 cases*seed 3; report in *"])
    assert run_summary(pytester).spec.settings == str(settings)

    runner.ran.clear()
    run(pytester, "--fuzz", "--fuzz-examples", "5", "--fuzz-out", "r").assert_outcomes(passed=2)
    assert len(runner.ran) == 6
    result = run(pytester, "--fuzz", "--fuzz-no-settings", "--fuzz-examples", "5", "--fuzz-out=s")
    result.assert_outcomes(passed=1)


def test_a_bad_file_of_settings_matters_only_where_something_fuzzes(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(ONE_TEST)
    (pytester.path / "fuzzgraph.toml").write_text("tiem = 3\n")
    run(pytester).assert_outcomes(passed=1)
    result = run(pytester, "--fuzz")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*Did you mean 'time'?"])


def test_a_bad_corpus_entry_fails_under_its_name_and_costs_no_other(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRunner())
    corpus.add(pytester.path / "saved", case(1))
    (pytester.path / "saved" / "broken.json").write_text("{")
    result = run(pytester, "--fuzz-corpus", "saved")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*corpus?broken?*", "saved/broken.json: not valid JSON*"])


def test_a_case_beyond_the_target_is_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Narrow(FakeRunner):
        def run_case(self, case: object) -> FakeVerdict:
            return FakeVerdict(skipped="captures decode graphs only")

    use(monkeypatch, Narrow())
    corpus.add(pytester.path / "saved", case(1))
    result = run(pytester, "--fuzz-corpus", "saved", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*captures decode graphs only*"])


def test_an_own_test_takes_five_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRunner(paged))
    pytester.makepyfile(
        """
        def test_my_engine(fuzz_engine):
            fuzz_engine("builtin", examples=100)
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["FINDING ?critical? A decode replay writes memory past the end of kv_indices"]
    )
    assert "pytest_plugin" not in result.stdout.str()


BAD_OPTIONS = {
    "time": (["--fuzz", "--fuzz-time", "10x"], "--fuzz-time='10x' is not a valid duration"),
    "examples": (["--fuzz", "--fuzz-examples", "-1"], "--fuzz-examples='-1' is not a whole number"),
    "seed": (["--fuzz", "--fuzz-seed", "x"], "--fuzz-seed='x' is not a whole number"),
    "profile": (["--fuzz", "--fuzz-profile", "fast"], "--fuzz-profile='fast' is unknown"),
    "target": (["--fuzz", "--fuzz-target", "vlm"], "target='vlm' is unknown"),
    "device": (["--fuzz", "--fuzz-device", "tpu"], "--fuzz-device='tpu' is unknown"),
    "without fuzz": (["--fuzz-time", "3s"], "--fuzz-time does nothing without --fuzz"),
    "corpus": (["--fuzz-corpus", "none"], "corpus folder none: cannot be read"),
    "out": (["--fuzz", "--fuzz-out", "a_file/run"], "out='a_file/run' cannot be used (Not a dir"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_wrong_option_is_said_in_one_line(pytester: pytest.Pytester, name: str) -> None:
    arguments, message = BAD_OPTIONS[name]
    (pytester.path / "a_file").touch()
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stderr.str() + result.stdout.str()
    assert f"ERROR: {message}" in said
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said
    assert not (pytester.path / "reports").exists()


def test_a_folder_that_cannot_be_written_matters_only_where_something_fuzzes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRunner())
    pytester.makepyfile(ONE_TEST)
    (pytester.path / "reports").touch()
    assert fuzz(pytester).ret == pytest.ExitCode.USAGE_ERROR
    assert fuzz(pytester, "-k", "mine").ret == pytest.ExitCode.OK
    assert fuzz(pytester, "--collect-only").ret == pytest.ExitCode.OK


IDS = ("footprint-decode.kv_indices-decode-fe015c", "footprint-decode.kv_indices-decode-bd8c12")


def repros(folder: Path, *, log: str = "events.jsonl") -> list[Path]:
    """What a run leaves that found two things; without a log it is a folder of one's own."""
    paths = []
    for name in IDS:
        place = folder / "findings" / name
        place.mkdir(parents=True)
        (place / "found.json").write_text("{}")
        paths.append(place / file_names(name)["pytest"])
        paths[-1].write_text("def test_repro():\n    assert False\n")
    if log:
        (folder / log).write_text("")
    return paths


@pytest.mark.parametrize("log", ["events.jsonl", "events-0.jsonl"])
def test_findings_of_earlier_runs_are_no_tests_of_the_project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    use(monkeypatch, FakeRunner())
    pytester.makepyfile(ONE_TEST)
    for number in range(2):
        repros(pytester.path / f"reports/runs/{number}", log=log)
    run(pytester).assert_outcomes(passed=1)
    fuzz(pytester, "-k", "fuzzgraph").assert_outcomes(passed=1, deselected=1)


def test_a_repro_that_is_named_runs(pytester: pytest.Pytester) -> None:
    paths = repros(pytester.path / "reports/runs/1")
    run(pytester, str(paths[0])).assert_outcomes(failed=1)
    run(pytester, str(paths[0].parents[1])).assert_outcomes(failed=2)


def test_a_folder_of_ones_own_may_be_called_findings(pytester: pytest.Pytester) -> None:
    repros(pytester.path, log="")
    run(pytester).assert_outcomes(failed=2)


def test_without_the_plugin_the_repros_of_a_run_are_modules_of_different_names(
    pytester: pytest.Pytester,
) -> None:
    repros(pytester.path / "reports/runs/1")
    result = pytester.runpytest_subprocess("-p", "no:fuzzgraph", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=2)


PATCHED = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.fakes import FakeRunner, no_exporting, opener, paged
import fuzzgraph.campaign.run
import fuzzgraph.pytest_plugin.suite
fuzzgraph.pytest_plugin.suite.open_setup = opener(FakeRunner(paged))
fuzzgraph.campaign.run.Exporting = no_exporting
"""


def run_on_two(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "-n", "2"]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_two_processes_share_the_work_and_report_a_finding_once(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(PATCHED)
    pytester.makepyfile(ONE_TEST)
    done = run_on_two(
        pytester.path, "--fuzz", "--fuzz-examples", "60", "--fuzz-seed", "1", "--junit-xml=r.xml"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert done.stdout.count("\nFINDING") == 1
    assert "1 finding in 60 cases" in done.stdout
    summary = run_summary(pytester)
    assert (summary.shards, summary.cases, len(summary.findings)) == (2, 60, 1)
    shards = sorted(pytester.path.glob("reports/runs/*/events-*.jsonl"))
    digests = [
        {line.split(b'"digest":"')[1][:12] for line in path.read_bytes().splitlines()
         if b'"digest":"' in line}
        for path in shards
    ]  # fmt: skip
    assert digests[0] - digests[1] and digests[1] - digests[0]
    assert len(list(ElementTree.parse(pytester.path / "r.xml").getroot().iter("failure"))) == 1


@pytest.mark.slow
def test_each_of_two_processes_gets_one_shard(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PATCHED)
    pytester.makepyfile("".join(f"def test_{n}(): pass\n" for n in range(30)))
    done = run_on_two(pytester.path, "-v", "--fuzz", "--fuzz-examples", "20", "--fuzz-seed", "1")
    workers = set(re.findall(r"^\[(gw\d)\] .*::fuzz\[", done.stdout, re.MULTILINE))
    assert workers == {"gw0", "gw1"}, done.stdout
