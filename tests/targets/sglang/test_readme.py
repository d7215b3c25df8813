"""The finding and the script that the README shows are those of the released engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuzzgraph.case import encode_case
from fuzzgraph.cli.entry import run_command
from tests.quoting import is_part_of
from tests.targets.sglang.released import decode_case, release_path

README = Path(__file__).resolve().parents[3] / "README.md"

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.skipif(not README.is_file(), reason="needs the repository"),
]


def quotation(kind: str) -> str:
    """What the README quotes of the finding: its `output`, or its `script`."""
    text = README.read_text(encoding="utf-8")
    [quoted] = re.findall(rf"<!-- real {kind}: .*?```\w+\n(.*?)```", text, re.DOTALL)
    return str(quoted)


def test_the_finding_and_the_script_that_are_shown_are_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release_path("0.5.12")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    case = decode_case((2,), capture_bs=(1,), page_size=2, max_context_len=2)
    (corpus / "case.json").write_bytes(encode_case(case))
    setup = ["--target", "sglang-aiter", "--release", "0.5.12", "--examples", "0", "--seed", "1"]
    places = ["--corpus", str(corpus), "--out", str(tmp_path / "run")]
    assert run_command(["run", *setup, *places]) == 1
    said = capsys.readouterr().out
    assert is_part_of(said, quotation("output")), said
    [script] = (tmp_path / "run" / "findings").glob("*/repro.py")
    assert is_part_of(script.read_text(encoding="utf-8"), quotation("script"))
