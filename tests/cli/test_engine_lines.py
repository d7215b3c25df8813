"""A finding in a working tree leads to the line that made it, in every report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fuzzgraph.campaign import load_corpus, run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.case import encode_case
from fuzzgraph.cli.entry import run_command
from fuzzgraph.reporting import finding_text
from fuzzgraph.repro import export_issue
from fuzzgraph.run.events import RunSummary
from fuzzgraph.run.spec import Budget, RunSpec
from fuzzgraph.run_options import checked_setup
from tests.fakes import no_exporting
from tests.unit.reporting.test_formats import SUBSET
from tests.unit.repro.faulty import once
from tests.unit.test_source_tree import git

TARGET = """
from fuzzgraph.targets.builtin import BuiltinTarget

class Made(BuiltinTarget):
    package = "engine"
    engine_packages = ("engine",)
    isolated = True

    def load(self):
        import engine
        self.components = engine.COMPONENTS
"""
ENGINE = """
from dataclasses import replace

from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.runners.base import GraphRunner


class Runner(GraphRunner):
    def prepare_replay(self, batch):
        super().prepare_replay(batch)
        lengths = self.current().static.registry.buffers["seq_lens"]
        behind = lengths.storage_offset() + lengths.numel()
        lengths.as_strided((1,), (1,), behind).fill_(7)  # WRONG
        lengths.add_(0)


COMPONENTS = replace(Components(), decode=Runner)
"""
PATH = "python/engine/__init__.py"


def run(top: Path, out: str, text: str) -> RunSummary:
    """Run the one case on the tree with this engine, without executing repros."""
    (top / PATH).write_text(text)
    folder = top.parent / out
    folder.mkdir()
    spec = RunSpec(
        setup=checked_setup("made:Made", source="tree"),
        seed=1,
        budget=Budget(examples=0),
        out=str(folder),
    )
    seeds = load_corpus(top.parent / "cases")
    return run_campaign(spec, lambda event: None, seeds=seeds, export=no_export)


def sarif_of(folder: Path) -> dict[str, Any]:
    """Its first result; the log names nothing of this machine."""
    text = (folder / "report.sarif").read_text()
    assert str(folder.parent) not in text
    log: dict[str, Any] = json.loads(text)
    jsonschema.validate(log, json.loads(SUBSET.read_text()))
    assert "%SRCROOT%" in log["runs"][0]["originalUriBaseIds"]
    result: dict[str, Any] = log["runs"][0]["results"][0]
    return result


def place_of(result: dict[str, Any]) -> tuple[str, str, int]:
    place = result["locations"][0]["physicalLocation"]
    artifact = place["artifactLocation"]
    return artifact["uri"], artifact["uriBaseId"], place["region"]["startLine"]


def wrong_line(text: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), start=1) if "# WRONG" in line)


def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Of an engine with this code; its target and one case lie beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "made.py").write_text(TARGET)
    top = tmp_path / "tree"
    (top / "python" / "engine").mkdir(parents=True)
    (top / PATH).write_text(text)
    git(top, "init", "-q", "-b", "topic")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "one.json").write_bytes(encode_case(once(4)))
    return top


def test_a_result_lies_at_the_line_of_the_checkout_and_stays_the_same_when_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = checkout(tmp_path, monkeypatch, "")
    summary = run(top, "one", ENGINE)
    one = sarif_of(tmp_path / "one")
    assert place_of(one) == (PATH, "%SRCROOT%", wrong_line(ENGINE))
    line = f"{PATH}:{wrong_line(ENGINE)}"
    (reported,) = (found for found in summary.findings if found.id == one["properties"]["id"])
    assert finding_text(reported).count(f"{line} in prepare_replay writes outside of") == 1
    issue = export_issue(reported.case, reported.finding, summary.setup, summary.environment)
    assert issue.count(line) == 1
    assert f"| `{line}` |" in (tmp_path / "one" / "summary.md").read_text()
    (case,) = (place for place in one["relatedLocations"] if "case" in place["message"]["text"])
    assert case["physicalLocation"]["artifactLocation"]["uriBaseId"] == "RUN"

    moved = "# one more\n# and another\n" + ENGINE
    run(top, "two", moved)
    two = sarif_of(tmp_path / "two")
    assert place_of(two) == (PATH, "%SRCROOT%", wrong_line(ENGINE) + 2)
    assert two["partialFingerprints"] == one["partialFingerprints"]


CHANGED = """
from dataclasses import replace

from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.runners.base import GraphRunner


class Runner(GraphRunner):
    def prepare_replay(self, batch):
        super().prepare_replay(batch)
        extra = 0
        self.fill(self.current().static.registry.buffers["seq_lens"], extra)

    def fill(self, lengths, extra):
        behind = lengths.storage_offset() + lengths.numel()
        lengths.as_strided((extra,), (1,), behind).fill_(7)  # WRONG


COMPONENTS = replace(Components(), decode=Runner)
"""


def test_a_gate_shows_a_finding_at_the_changed_line_that_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    top = checkout(tmp_path, monkeypatch, CHANGED)
    monkeypatch.setattr("fuzzgraph.campaign.run.Exporting", no_exporting)
    changed = CHANGED.replace("extra = 0", "extra = 1")
    (top / PATH).write_text(changed)
    words = ["--target", "made:Made", "--corpus", "cases", "--examples", "0", "--time", "60s"]
    assert run_command(["gate", "--source", "tree", "--base", "HEAD", *words, "--out", "out"]) == 1
    number = 1 + changed.splitlines().index("        extra = 1")
    one = sarif_of(tmp_path / "out")
    assert place_of(one) == (PATH, "%SRCROOT%", number)
    told = [place["message"]["text"] for place in one["relatedLocations"]]
    assert any("in fill writes outside of" in text for text in told)
    assert f"{PATH}:{number} in prepare_replay is touched by the change" in capsys.readouterr().out
