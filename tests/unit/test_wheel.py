"""A wheel in an environment of its own, used from a folder that is not a clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path
from sysconfig import get_path

import pytest

from tests.unit.test_project import ROOT, built, copy_of_project, needs_checkout

pytestmark = [needs_checkout, pytest.mark.slow]

Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel_of_the_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from what a source distribution holds, as an index would have it."""
    folder = copy_of_project(tmp_path_factory.mktemp("project"))
    build = "from setuptools import build_meta; print(build_meta.build_sdist('out'))"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
    [sdist] = (folder / "out").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not any(member.issym() for member in archive.getmembers())
        archive.extractall(folder / "unpacked")
    [unpacked] = (folder / "unpacked").iterdir()
    return built(unpacked)


@pytest.fixture(scope="module")
def verb(wheel_of_the_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Verb:
    """The command of an environment that has the wheel, in an empty folder."""
    home, elsewhere = tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("elsewhere")
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
    install += ["--quiet", "--no-deps", "--no-index", str(wheel_of_the_sdist)]
    subprocess.run(install, check=True, capture_output=True)
    # Its dependencies, from here; a folder in a .pth brings no .pth of its own, hence no clone.
    (packages / "dependencies.pth").write_text(get_path("purelib") + "\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(home / "bin" / "fuzzgraph"), *words]
        environment = {**os.environ, "FUZZGRAPH_CACHE": str(elsewhere / "cache")}
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True
        )
        assert str(ROOT) not in done.stdout + done.stderr
        return done

    return run


def names(folder: str, ending: str) -> set[str]:
    return {path.stem for path in (ROOT / "corpus" / folder).glob(f"*{ending}")}


def test_a_run_starts_with_the_saved_cases(verb: Verb) -> None:
    done = verb("run", "--examples", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["corpus_cases"] == len(names("cases", ".json"))


def test_the_saved_cases_are_listed_and_each_is_found_by_its_digest(verb: Verb) -> None:
    cases = json.loads(verb("corpus", "list", "--json").stdout)["cases"]
    assert {Path(case["path"]).stem for case in cases} == names("cases", ".json")
    assert verb("replay", cases[0]["digest"]).returncode == 0


def test_the_known_bugs_are_listed(verb: Verb) -> None:
    done = verb("known-bugs", "list", "--json")
    assert done.returncode == 0, done.stderr
    listed = {bug["name"] for bug in json.loads(done.stdout)["known_bugs"]}
    assert listed == names("known_bugs", ".toml")


def test_what_a_message_points_to_is_there(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "bug.toml").write_text("colour = 1\n")
    (tmp_path / "case.json").write_text('{"schema_version": 1, "colour": 1}')
    [fields] = [
        Path(word)
        for word in verb("known-bugs", "list", "--catalogue", str(tmp_path)).stderr.split()
        if word.endswith("README.md")
    ]
    assert "`not_driven`" in fields.read_text()
    assert "'fuzzgraph schema case'" in verb("replay", str(tmp_path / "case.json")).stderr
    published = json.loads((ROOT / "corpus" / "case.schema.json").read_text())
    assert json.loads(verb("schema", "case").stdout) == published


@pytest.mark.parametrize("words", [["doctor"], ["targets"], ["faults", "--list"]], ids=" ".join)
def test_what_there_is_can_be_asked(verb: Verb, words: list[str]) -> None:
    done = verb(*words)
    assert done.returncode == 0, done.stderr
    assert "broken" not in done.stdout
