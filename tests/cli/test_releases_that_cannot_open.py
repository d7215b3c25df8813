"""A release that cannot be opened here: one line with the way out, exit code 2, nothing fetched.

Each release is an invented one in a cache of its own, and a real worker opens it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.cli.entry import run_command

_PLATFORMS = "vllm/platforms/__init__.py"
_CASES = {
    "a companion is missing": (
        "vllm-fa", {_PLATFORMS: "import no_such_companion\n"}, {},
        "cannot import 'no_such_companion'", "make vllm",
    ),
    "the wheel lacks the module": (
        "vllm-fa", {}, {}, "has no module 'vllm.platforms'", "Use a release that has it",
    ),
    "it wants another torch": (
        "vllm-triton", {_PLATFORMS: "import torch\ntorch.of_next_year\n"}, {},
        "no attribute 'of_next_year' at vllm/platforms/__init__.py:2", "another torch than",
    ),
    "a setting of vLLM": (
        "vllm-fa", {}, {"VLLM_USE_V1": "0"}, "VLLM_USE_V1='0' changes which code", "Unset it",
    ),
    "a setting of FlashInfer": (
        "flashinfer-decode", {}, {"FLASHINFER_LOGLEVEL": "3"},
        "FLASHINFER_LOGLEVEL='3' changes which code", "Unset it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", _CASES)
def test_a_release_that_cannot_open_is_told_in_one_line(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, files, settings, said, way_out = _CASES[why]
    package = target.partition("-")[0]
    distribution = {"flashinfer": "flashinfer-python"}.get(package, package)
    cache = tmp_path / "cache" / "releases" / distribution
    for name, text in {f"{package}/__init__.py": "", **files}.items():
        path = cache / "9.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    given = ["run", "--target", target, "--release", "9.0", "--time", "1s", "--out", "run"]
    assert run_command(given) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fuzzgraph: AdapterUnavailable: ")
    assert said in line and way_out in line
    assert [path.name for path in cache.iterdir()] == ["9.0"]
