"""What a command leaves in the folder in which it is called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fuzzgraph.process.interpreter import module_command


def test_a_run_leaves_its_report_in_the_current_folder_and_nothing_else(tmp_path: Path) -> None:
    here, cache, cases = (tmp_path / name for name in ("here", "cache", "cases"))
    here.mkdir()
    cases.mkdir()
    environment = {name: os.environ[name] for name in os.environ if "HYPOTHESIS" not in name}
    words = ["run", "--examples", "20", "--seed", "1", "--corpus", str(cases)]
    subprocess.run(
        module_command("fuzzgraph", *words),
        cwd=here,
        env=environment | {"FUZZGRAPH_CACHE": str(cache)},
        check=True,
        capture_output=True,
    )
    assert [path.name for path in here.iterdir()] == ["reports"]
    assert (cache / "hypothesis").is_dir()  # which would lie here otherwise
