"""docs/troubleshooting.md quotes what FuzzGraph says; `...` stands for what differs by machine."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch

from fuzzgraph.cli.entry import run_command
from tests.quoting import is_all_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
WRONG_CALL = 2

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository")


def quotes() -> list[tuple[str, str]]:
    """Each command that the page shows, with the output that it quotes."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    return re.findall(r"^```console\n\$ ([^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def needs_another_machine(command: str) -> bool:
    return ("--device cuda" in command and torch.cuda.is_available()) or (
        "sglang-aiter" in command and importlib.util.find_spec("sglang") is not None
    )


@pytest.mark.parametrize(("command", "quoted"), quotes(), ids=[one for one, _ in quotes()])
def test_the_page_quotes_what_a_wrong_call_is_answered_with(
    command: str,
    quoted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if needs_another_machine(command):
        pytest.skip("this machine has what the page says is missing")
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    assert program == "fuzzgraph"
    assert run_command(words) == WRONG_CALL
    said = capsys.readouterr().err
    assert is_all_of(said, quoted), said


def test_the_page_quotes_something() -> None:
    assert quotes()


@pytest.mark.parametrize("said", ["wrong: torch 2.6 is old.\nMore", "wrong: torch 2.6 is new."])
def test_another_message_is_caught(said: str) -> None:
    assert is_all_of("wrong: torch 2.6 is old.", "wrong: torch ...\nis old.")
    assert not is_all_of(said, "wrong: torch ...\nis old.")
