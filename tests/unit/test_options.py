"""Every option of a run, from the table: what is asked is what arrives, whatever carries it.

The options come from the table, so that a new one is tested here without a line more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import fuzzgraph.execution
from fuzzgraph.campaign import open_setup
from fuzzgraph.cli.options import setup_options, spec_options
from fuzzgraph.errors import UsageError
from fuzzgraph.fleet.messages import ShardSpec
from fuzzgraph.pytest_plugin.options import Options, options_of
from fuzzgraph.run.events import CampaignStarted, RunSummary, encode_event, parse_event
from fuzzgraph.run.option import OptionRow
from fuzzgraph.run.spec import OPTIONS, SETUP_OPTIONS, Budget, RunSpec, Setup
from fuzzgraph.run_options import checked_setup, checked_spec, option_words, replay_command
from fuzzgraph.strict_json import decode_json
from fuzzgraph.worker import WorkerClient, open_client
from fuzzgraph.worker.messages import Open
from fuzzgraph.worker.serve import RequestHandler

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = {point.name for point in entry_points(group="pytest11")}
PLUGIN = () if "fuzzgraph" in INSTALLED else ("-p", "fuzzgraph.pytest_plugin")
NAMES = [row.name for row in OPTIONS]
TEXTS = {
    "database": "dir:a folder",
    "target": "engine_of_mine:make",
    "tree": "0123456789abcdef0123456789abcdef01234567+0123456789ab",
}


def another(row: OptionRow) -> Any:
    """A value of the option that differs from its default and can be told from those of others."""
    if row.kind == "flag":
        return not row.default
    if row.kind == "choice":
        return next(word for word in row.choices if word != row.default)
    if row.kind == "number":
        return 100 + NAMES.index(row.name)
    if row.kind == "duration":
        return 1000.5 + NAMES.index(row.name)
    return TEXTS.get(row.name, f"some {row.name}")


def changed(row: OptionRow) -> RunSpec:
    """A spec in which this option alone differs from what a command line without it gives."""
    base = checked_spec({"seed": 0, "examples": 7})
    value = {row.name: another(row)}
    if row.record is Setup:
        return msgspec.structs.replace(base, setup=msgspec.structs.replace(base.setup, **value))
    if row.record is Budget:
        return msgspec.structs.replace(base, budget=msgspec.structs.replace(base.budget, **value))
    spec = msgspec.structs.replace(base, **value)
    if row.name == "only_new":
        spec = msgspec.structs.replace(spec, baseline="b.jsonl")
    return spec.with_profile_times()


SPECS = {row.name: changed(row) for row in OPTIONS}
SETUPS = {row.name: SPECS[row.name].setup for row in SETUP_OPTIONS}


@pytest.fixture(autouse=True)
def no_contradictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option by itself, also one that asks for a GPU or goes with another one only."""
    monkeypatch.setattr("fuzzgraph.run_options._require_device", lambda: None)
    monkeypatch.setattr("fuzzgraph.run_options._require_sanitizer", lambda tool: None)
    monkeypatch.setattr(
        "fuzzgraph.worker.sanitizer.check.require_tool", lambda tool: Path("/compute-sanitizer")
    )
    monkeypatch.setattr("fuzzgraph.run_options._refuse_contradictions", lambda setup: None)
    monkeypatch.setattr("fuzzgraph.run_options.with_tree", lambda setup: setup)


def parsed(decorate: Callable[[Any], Any], words: list[str]) -> Any:
    """What a command with these options gets of a command line."""
    got: list[Any] = []

    def command(**given: Any) -> None:
        got.extend(given.values())

    click.command()(decorate(command)).main(words, standalone_mode=False)
    (record,) = got
    return record


def run_verb(words: list[str]) -> Any:
    return parsed(lambda command: spec_options(command, verb="run"), words)


def case_verb(words: list[str]) -> Any:
    return parsed(setup_options, words)


@pytest.mark.parametrize("name", SPECS)
def test_a_command_line_gives_the_spec_that_it_was_made_of(name: str) -> None:
    assert run_verb(option_words(SPECS[name])) == SPECS[name]


def test_all_options_at_once_give_their_spec() -> None:
    given = {row.name: another(row) for row in OPTIONS}
    spec = checked_spec(given)
    assert run_verb(option_words(spec)) == spec
    assert all(
        getattr({Setup: spec.setup, Budget: spec.budget, RunSpec: spec}[row.record], row.name)
        == given[row.name]
        for row in OPTIONS
    )


@pytest.mark.parametrize("name", SETUPS)
def test_a_replay_command_gives_the_setup_that_showed_the_finding(name: str) -> None:
    words = shlex.split(replay_command("case.json", SETUPS[name]))
    assert words[:3] == ["fuzzgraph", "replay", "case.json"]
    assert case_verb(words[3:]) == SETUPS[name]


def test_each_changed_setup_is_another_one() -> None:
    """Or the tests above could not fail."""
    assert len({*SETUPS.values(), Setup()}) == len(SETUPS) + 1
    assert all(SPECS[row.name] != checked_spec({"seed": 0, "examples": 7}) for row in OPTIONS)


@pytest.mark.parametrize("name", SPECS)
def test_logs_and_orders_hold_the_whole_spec(name: str) -> None:
    spec = SPECS[name]
    started = parse_event(encode_event(CampaignStarted(spec=spec)))
    assert isinstance(started, CampaignStarted) and started.spec == spec
    order = decode_json(msgspec.json.encode(ShardSpec(run="r", spec=spec)), ShardSpec)
    assert order.spec == spec
    summary = decode_json(msgspec.json.encode(RunSummary(fuzzgraph="0", spec=spec)), RunSummary)
    assert summary.spec == spec and (summary.setup, summary.seed) == (spec.setup, spec.seed)


class Seen:
    """Stands for an execution and keeps what it was given."""

    setups: list[Setup] = []

    def __init__(self, target: Any, setup: Setup) -> None:
        self.setups.append(setup)

    def unserved(self, config: Any) -> str:
        return ""

    def close(self) -> None: ...


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Setup]]:
    monkeypatch.setattr(fuzzgraph.execution, "Execution", Seen)
    monkeypatch.setattr("fuzzgraph.open_target._target", lambda setup: Engine())
    monkeypatch.setattr("fuzzgraph.worker.serve.loaded_target", lambda message, watched: Engine())
    Seen.setups = []
    yield Seen.setups


class Engine:
    """As much of a target as opening it needs."""

    name = "builtin"
    package = "engine"


IN_THIS_PROCESS = [name for name in SETUPS if name not in ("release", "source", "device")]


@pytest.mark.parametrize("name", IN_THIS_PROCESS)
def test_an_execution_in_this_process_gets_the_setup_that_was_asked(
    name: str, seen: list[Setup]
) -> None:
    setup = msgspec.structs.replace(SETUPS[name], isolation="off")
    open_setup(setup).close()
    assert seen == [setup]


@pytest.mark.parametrize("name", SETUPS)
def test_a_worker_is_sent_the_setup_that_was_asked(
    name: str, seen: list[Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real encoding of the message and the child's own handler of it."""

    def start(client: WorkerClient) -> None:
        sent = decode_json(msgspec.json.encode(client._pool.opening), Open)
        RequestHandler(lambda stage, step: None).answer(sent)

    monkeypatch.setattr(WorkerClient, "start", start)
    monkeypatch.setattr("fuzzgraph.open_target.engine_paths", lambda setup, target: [Path("/r")])
    monkeypatch.setattr("fuzzgraph.targets.own.see_current_folder", lambda: None)
    setup = SETUPS[name]
    if not setup.isolation:
        setup = msgspec.structs.replace(setup, isolation="on")
    open_setup(setup).close()
    assert seen == [setup]


def test_a_real_child_gets_every_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZGRAPH_TOLD", str(tmp_path / "told.json"))
    given = {row.name: another(row) for row in SETUP_OPTIONS}
    # A planted fault is opened in place of the target that tells, and a GPU may not be here.
    unlike = {"target": "tests.unit.telling:Telling", "fault": "", "device": "cpu"}
    setup = Setup(**given | unlike)
    with open_client(setup, paths=[ROOT], folder=tmp_path):
        assert decode_json((tmp_path / "told.json").read_bytes(), Setup) == setup


@pytest.mark.parametrize("name", [row.name for row in OPTIONS if row.option.pytest])
def test_the_plugin_gets_the_spec_that_was_asked_in_each_of_its_processes(
    name: str, pytester: pytest.Pytester
) -> None:
    spec = SPECS[name]
    rows = [row for row in OPTIONS if row.option.pytest]
    config = pytester.parseconfig(*PLUGIN, "--fuzz", *option_words(spec, rows, "--fuzz-"))
    options = options_of(config)
    assert options is not None and options.spec == spec
    assert Options.of_plain(options.plain(spec.out)).spec == spec


def test_every_field_of_a_setup_is_an_option() -> None:
    assert [row.name for row in SETUP_OPTIONS] == list(Setup.__struct_fields__)


def test_the_table_names_each_option_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({row.word for row in OPTIONS}) == len(OPTIONS)


def test_what_contradicts_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UsageError, match="--fuzz-only-new needs a baseline"):
        checked_spec({"only_new": True}, dash="--fuzz-")
    with pytest.raises(UsageError, match="target 'builtin' has no releases"):
        checked_setup(release="1.0")
    with pytest.raises(
        UsageError, match="graphs='emulated' sees no launch of a kernel that is compiled"
    ):
        checked_setup(graphs="emulated", device="cuda", here=False)
    assert checked_setup(graphs="emulated").graphs == "emulated"
    with pytest.raises(UsageError, match="profile='device' draws shapes of servers"):
        checked_spec({"profile": "device"})
    assert checked_spec({"profile": "device", "graphs": "emulated"}).profile == "device"


@pytest.mark.parametrize(
    ("target", "release"),
    [
        ("sglang-fa3", "sglang==0.5.23"),
        ("flashinfer-decode", "flashinfer==0.5.23"),
        ("flashinfer-decode", "flashinfer-python==0.5.23"),
    ],
)
def test_a_release_may_be_written_as_pip_writes_it(target: str, release: str) -> None:
    assert checked_setup(target, release=release).release == "0.5.23"


def test_a_release_of_another_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="target 'sglang-fa3' drives sglang, not vllm"):
        checked_setup("sglang-fa3", release="vllm==0.33.0")
