"""docs/cli.md names every verb, option and field that scripts may rely on."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fuzzgraph.cli.entry import root_command
from fuzzgraph.run.events import Export, ReportedFinding, RunSummary, Setup
from fuzzgraph.run.spec import OPTIONS, SETUP_OPTIONS
from fuzzgraph.run_options import option_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository")


def commands(group: click.Group, path: str = "") -> dict[str, click.Command]:
    """Every verb and sub-verb by its words."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{path} {name}".strip()
        found[words] = command
        if isinstance(command, click.Group):
            found |= commands(command, words)
    return found


@pytest.mark.parametrize("record", [RunSummary, ReportedFinding, Export, Setup])
def test_every_field_of_a_summary_is_documented(record: type[RunSummary]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in record.__struct_fields__ if f"`{name}`" not in text] == []


def test_the_tables_of_options_say_what_the_program_does() -> None:
    """They are made by `option_table`: paste what it gives where this fails."""
    text = PAGE.read_text(encoding="utf-8")
    setup = option_table(SETUP_OPTIONS)
    run = option_table(row for row in OPTIONS if row not in SETUP_OPTIONS)
    assert f"\n{setup}\n" in text and f"\n{run}\n" in text


def test_the_help_says_what_each_verb_does_in_a_whole_line() -> None:
    shown = CliRunner().invoke(root_command, ["--help"], prog_name="fuzzgraph").output
    verbs = shown.partition("Commands:\n")[2].splitlines()
    assert len(verbs) == len(root_command.list_commands(click.Context(root_command)))
    assert [line for line in verbs if line.endswith("...")] == []


def test_every_verb_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [words for words in commands(root_command) if words.split()[0] not in text] == []


def test_every_option_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    options = {
        option
        for command in commands(root_command).values()
        for param in command.params
        if isinstance(param, click.Option)
        for option in [*param.opts, *param.secondary_opts]
    }
    assert sorted(option for option in options if option not in text) == ["--verify"]


def test_every_verb_but_a_group_speaks_json() -> None:
    verbs = {
        words: command
        for words, command in commands(root_command).items()
        if not isinstance(command, click.Group)
    }
    without = [
        words
        for words, command in verbs.items()
        if not any("--json" in param.opts for param in command.params)
    ]
    assert without == []
