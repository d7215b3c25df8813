"""The composite action and the page about it: its steps as a runner takes them, on stand-ins."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fuzzgraph.cli.entry import root_command

ROOT = Path(__file__).parents[2]
FILE = ROOT / "action.yml"
PAGE = ROOT / "docs" / "in-your-engines-ci.md"

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="needs the repository")

# Writes down how it was called; a gate leaves a report with a mended case, and ends as told.
STAND_IN = """#!/bin/sh
echo "$@" >> "$CALLS"
for word in "$@"; do
  case $word in --out=*) out=${word#--out=} ;; esac
done
case $1 in
  gate) mkdir -p "$out/runs/one target/mended" "$out/runs/another"
        echo "# verdict" > "$out/summary.md"; echo "$SARIF" > "$out/report.sarif"
        exit "$GATE_ENDS" ;;
esac
"""


def action() -> dict[str, Any]:
    loaded = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = action()["runs"]["steps"]
    return found


def step(name: str) -> dict[str, Any]:
    (found,) = (one for one in steps() if one.get("name") == name)
    return found


class Runner:
    """As much of GitHub's runner as the steps need: expressions, outputs, a shell for each."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder = folder
        self.values = {
            f"inputs.{name}": inputs.get(name.replace("-", "_"), told["default"])
            for name, told in action()["inputs"].items()
        }
        self.values["steps.python.outputs.python-path"] = "python3"
        (folder / "summary").touch()
        (folder / "runner").mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RUNNER_TEMP": str(folder / "runner"),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
            "CALLS": str(folder / "calls"),
            "SARIF": '{"runs": [{"tool": {"driver": {}}}]}',
        }

    def value(self, text: str) -> str:
        """A text with its expressions replaced; an output that was not set is empty."""
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda hit: self.values.get(hit[1], ""), text)

    def run(self, name: str, **more: str) -> subprocess.CompletedProcess[str]:
        """One step by `bash`, as the runner starts it; its outputs are kept."""
        one = step(name)
        outputs = self.folder / "outputs"
        outputs.write_text("")
        script = self.folder / "step.sh"
        script.write_text(one["run"])
        given = {key: self.value(text) for key, text in one.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
            env={**self.environment, **given, **more, "GITHUB_OUTPUT": str(outputs)},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        for line in outputs.read_text().splitlines():
            key, _, told = line.partition("=")
            self.values[f"steps.{one['id']}.outputs.{key}"] = told
        return done

    def stand_in(self) -> None:
        """A `fuzzgraph` and a `python` that take the place of the environment's."""
        folder = Path(self.values["steps.places.outputs.environment"]) / "bin"
        folder.mkdir(parents=True)
        for name, text in (("fuzzgraph", STAND_IN), ("python", "#!/bin/sh\necho /shipped\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return ready(tmp_path)


def ready(folder: Path, **inputs: str) -> Runner:
    runner = Runner(folder, **inputs)
    assert runner.run("Places and keys").returncode == 0
    runner.stand_in()
    return runner


@pytest.mark.parametrize("code", ["0", "1", "2", "3"])
def test_the_gate_ends_as_its_command_does_and_shows_its_summary(runner: Runner, code: str) -> None:
    assert runner.run("Gate", GATE_ENDS=code).returncode == int(code)
    assert (runner.folder / "summary").read_text() == "# verdict\n"
    assert runner.values["steps.gate.outputs.exit-code"] == code
    assert Path(runner.values["steps.gate.outputs.sarif"]).is_file()


def test_a_gate_that_ran_no_target_has_nothing_to_upload(runner: Runner) -> None:
    assert runner.run("Gate", GATE_ENDS="0", SARIF='{"runs": []}').returncode == 0
    assert "steps.gate.outputs.sarif" not in runner.values


def test_without_inputs_gate_decides_time_jobs_and_targets(runner: Runner) -> None:
    runner.run("Gate", GATE_ENDS="0")
    home = runner.folder / "runner" / "fuzzgraph"
    assert runner.calls == [
        f"corpus merge /shipped --folder={home}/cache/cases",
        f"gate --source=. --base=HEAD^1 --corpus={home}/cache/cases --out={home}/gate",
    ]


def test_inputs_are_words_of_the_command_and_no_shell(tmp_path: Path) -> None:
    evil = "$(touch evil); `touch evil`"
    runner = ready(
        tmp_path, base=evil, time="90s", jobs="2", ledger="l.toml", corpus="own", targets="a b *"
    )
    runner.run("Gate", GATE_ENDS="0")
    assert runner.calls[1].startswith("corpus merge own --folder=")
    assert f"--base={evil} " in runner.calls[2]
    assert runner.calls[2].endswith(
        "--time=90s --jobs=2 --ledger=l.toml --target=a --target=b --target=*"
    )
    assert not (tmp_path / "evil").exists()


def test_what_a_green_change_mends_joins_the_cases(runner: Runner) -> None:
    runner.run("Gate", GATE_ENDS="0")
    assert runner.run("Cases of what this change mends").returncode == 0
    home = runner.folder / "runner" / "fuzzgraph"
    assert runner.calls[2:] == [
        f"corpus merge {home}/gate/runs/one target/mended --folder={home}/cache/cases"
    ]


def test_a_new_version_of_what_is_installed_makes_another_key(tmp_path: Path) -> None:
    for name in ("one", "same", "other"):
        (tmp_path / name).mkdir()
    keys = [
        ready(tmp_path / name, extras=extras).values["steps.places.outputs.wanted"]
        for name, extras in (("one", "triton"), ("same", "triton"), ("other", "sglang"))
    ]
    assert len(keys[0]) == 64 and keys[0] == keys[1] != keys[2]


def test_a_red_gate_keeps_its_report_and_no_cases() -> None:
    names = [one.get("name") for one in steps()]
    after = {one["name"]: one.get("if", "") for one in steps()[names.index("Gate") + 1 :]}
    always = [name for name, condition in after.items() if "!cancelled()" in condition]
    assert always == ["Show findings in the diff", "Keep the report"]
    assert after["Keep what targets execute, and the cases"] == ""


def test_no_text_of_an_input_stands_in_a_script() -> None:
    scripts = [one["run"] for one in steps() if "run" in one]
    assert len(scripts) == 5
    assert not [script for script in scripts if "${{" in script]
    assert all(one["shell"] == "bash" for one in steps() if "run" in one)
    assert "secrets" not in FILE.read_text().replace("there are no secrets", "")


def test_what_is_used_is_pinned_by_its_commit() -> None:
    for text in (FILE.read_text(), block("workflow")):
        used = re.findall(r"uses: (\S+)(.*)", text)
        assert used
        for name, rest in used:
            pinned = re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name) and re.match(r" # v[\d.]+$", rest)
            assert pinned or name == "OWNER/fuzzgraph@COMMIT"


def block(mark: str) -> str:
    """The code below a mark of the page."""
    found = re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    return found[1]


def test_the_workflow_of_the_page_is_safe_for_forks_and_gives_inputs_that_exist() -> None:
    workflow = yaml.safe_load(block("workflow"))
    assert set(workflow[True]) == {"pull_request", "push"}  # YAML reads `on` as true
    assert workflow["permissions"] == {"contents": "read", "security-events": "write"}
    checkout, gate = workflow["jobs"]["gate"]["steps"]
    assert checkout["with"] == {"fetch-depth": 2, "persist-credentials": False}
    assert set(gate["with"]) <= set(action()["inputs"])


def test_the_page_names_each_input() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", page, re.MULTILINE)
    assert set(re.findall(r"[\w-]+", " ".join(rows))) == set(action()["inputs"])


def gate_options(script: str) -> set[str]:
    return set(re.findall(r"--[\w-]+(?==)", script.replace("--folder=", "")))


@pytest.mark.parametrize("mark", ["shell", "hook"])
def test_other_machines_get_the_command_that_the_action_runs(mark: str) -> None:
    gate = root_command.get_command(click.Context(root_command), "gate")
    assert gate is not None
    known = {word for param in gate.params for word in param.opts}
    of_action = gate_options(step("Gate")["run"])
    assert {"--source", "--base", "--out"} <= of_action <= known
    assert gate_options(block(mark)) == {"--source", "--base", "--time", "--out"}
    assert "fuzzgraph gate " in block(mark)
    subprocess.run(["sh", "-n"], input=block(mark), text=True, check=True)
