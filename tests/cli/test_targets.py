"""`fuzzgraph targets`: what the list, one target's page and the report say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.cli.entry import run_command
from fuzzgraph.cli.targets import TargetRecord, line, record, wanted_releases
from fuzzgraph.cli.targets_page import page
from fuzzgraph.compatibility import Probe
from fuzzgraph.targets import target_names

OWN = """
from fuzzgraph.target import Excuse
from fuzzgraph.targets.builtin import BuiltinTarget


class Silent(BuiltinTarget):
    outputs_judged = property(lambda self: None, lambda self, value: None)


class Telling(BuiltinTarget):
    stood_in_for = ("the pump",)
    excuses = (Excuse("*.splits", "live", "its manual", "any number is right"),)
"""

EXCUSE = {"what": "*.n", "rule": "live", "source": "its manual", "reason": "r"}
A, B = (
    TargetRecord(name=name, outputs_judged=judged, stood_in_for=("groups", own), excuses=excuses)
    for name, judged, own, excuses in (
        ("a", {"decode": "", "draft": "one branch"}, "kernels", ()),
        ("b", {}, "pools", (EXCUSE,)),
    )
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "telling_targets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def written(*records: TargetRecord) -> str:
    return page([probe(one.name) for one in records], records)


def probe(target: str, package: str = "engine") -> Probe:
    return Probe(package=package, target=target, release="1.0", runs=True)


def test_the_list_says_of_each_of_our_targets_whether_its_outputs_are_judged() -> None:
    for name in target_names():
        said = line(record(name))
        judged = record(name).outputs_judged or {}
        words = ["outputs judged", *filter(None, judged.values())] if judged else ["no outputs"]
        assert said.rpartition("; ")[2] == ", ".join(words)


@pytest.mark.usefixtures("own")
def test_a_target_that_says_nothing_of_outputs_is_said_nothing_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "outputs" not in line(record("telling_targets:Silent"))
    assert run_command(["targets", "--target", "telling_targets:Silent"]) == 0
    assert "  outputs judged: it does not say\n" in capsys.readouterr().out


@pytest.mark.usefixtures("own")
def test_the_page_of_a_target_tells_its_stand_ins_and_its_excuses_with_their_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["targets", "--target", "telling_targets:Telling"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "  stood in for: the pump" in said
    assert "  excused: *.splits, rule live: any number is right (its manual)" in said


@pytest.mark.parametrize("name", ["sglang-fa3", "sglang-eagle-draft", "sglang-cpu-graph"])
def test_a_target_of_a_release_is_told_as_json(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["targets", "--target", name, "--json"]) == 0
    told: dict[str, Any]
    (told,) = json.loads(capsys.readouterr().out)["targets"]
    said = record(name)
    assert told["outputs_judged"] == said.outputs_judged
    assert told["stood_in_for"] == list(said.stood_in_for)
    keys = {"what", "rule", "source", "reason", "where_unread", "only_with", "only_as"}
    assert keys == set(told["excuses"][0])


def test_the_report_names_the_modes_whose_outputs_are_judged_and_counts_excuses() -> None:
    said = written(A, B)
    assert "| `a` | decode, draft (one branch) | kernels | 0 |" in said
    assert "| `b` | no | pools | 1 |" in said


def test_the_report_says_once_what_is_stood_in_for_in_every_target() -> None:
    assert written(A, B).count("groups") == 1
    assert "Stood in for in every target: groups.\n" in written(A, B)


def test_the_report_lists_each_excuse_once_with_its_source_and_those_that_have_it() -> None:
    assert "- `*.n`, rule live: r (its manual): `b`\n" in written(A, B)
    assert "- `*.n`, rule live: r (its manual): all targets\n" in written(B)


def test_the_report_leaves_out_targets_that_were_not_tried() -> None:
    assert "`b`" not in page([probe("a")], [A, B])


def test_the_report_keeps_what_it_says_of_engines_that_were_not_tried() -> None:
    before = page([probe("a", "first"), probe("b", "second")], [A, B])
    after = page([probe("b", "second")], [A, B], before)
    assert after == before
    assert after.count("## Releases of ") == 2
    mended = page([probe("a", "second")], [A], before)
    assert (
        mended.partition("## Releases of second")[0] == before.partition("## Releases of second")[0]
    )
    assert "`b`" not in mended


def test_releases_are_asked_for_by_engine_and_of_one_engine_by_version() -> None:
    both = ["vllm", "flashinfer"]
    asked = {"vllm": ["0.17.1", "0.20.2"], "flashinfer": ["0.7.2"]}
    assert wanted_releases("vllm==0.17.1,flashinfer-python==0.7.2,vllm==0.20.2", both) == asked
    assert wanted_releases("0.17.1", ["vllm"]) == {"vllm": ["0.17.1"]}
