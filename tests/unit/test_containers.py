"""The images for GPUs, read and not built, and the script that runs a night in one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fuzzgraph.targets import target_names

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "containers"
SCRIPT = ROOT / ".ci" / "container"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
PAGE = ROOT / "docs" / "nightly.md"
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the repository")
each_file = pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.stem)

STAND_IN = """#!/usr/bin/env bash
{ for word in "$@"; do printf '%s ' "$word"; done; echo; } >> "$CALLS"
[ "$1" != run ] || env > "$CALLS.environment"
"""
"""Writes down how `docker` was called, and with which environment at last."""


def instructions(file: Path) -> list[tuple[str, str]]:
    """What a Dockerfile has done, in order: the instruction and what is behind it, on one line."""
    text = re.sub(r"^#.*\n", "", file.read_text("utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]


def all_of(file: Path, word: str) -> list[str]:
    return [rest for name, rest in instructions(file) if name == word]


def sources(file: Path) -> list[str]:
    return [source for rest in all_of(file, "COPY") for source in rest.split()[:-1]]


def seen_by_docker() -> set[str]:
    """What `.dockerignore` lets through, of which it has to name each entry of the root."""
    return set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.M))


def test_there_is_a_file_for_each_vendor_and_a_machine_for_each_file() -> None:
    kinds = [path.stem for path in DOCKERFILES]
    assert kinds == ["cuda", "rocm"]
    script = SCRIPT.read_text("utf-8")
    workflow = NIGHTLY.read_text("utf-8")
    assert all(f"  {kind})" in script for kind in kinds)
    assert sorted(filter(None, re.findall(r'"container":"(\w*)"', workflow))) == kinds


@each_file
def test_a_file_has_only_instructions_that_there_are(file: Path) -> None:
    known = {"ARG", "FROM", "LABEL", "RUN", "ENV", "WORKDIR", "COPY", "VOLUME", "USER", "CMD"}
    assert {word for word, _ in instructions(file)} <= known


@each_file
def test_what_a_file_copies_is_there_and_docker_sees_it(file: Path) -> None:
    assert all((ROOT / source).exists() for source in sources(file))
    seen = {Path(source).parts[0] for source in sources(file) if source != "."}
    assert seen <= seen_by_docker()


def test_docker_sees_all_that_the_package_is_made_of() -> None:
    assert all((ROOT / name).exists() for name in seen_by_docker())
    linked = {path.resolve().name for path in (ROOT / "fuzzgraph").iterdir() if path.is_symlink()}
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    named = set(re.findall(r'^(?:readme = "|license-files = \[")([^"]+)"', project, re.M))
    assert linked and named
    assert {"fuzzgraph", "pyproject.toml"} | linked | named <= seen_by_docker()


@each_file
def test_the_base_is_public_and_pinned_by_the_torch_of_the_release_that_is_fuzzed(
    file: Path,
) -> None:
    [image] = [rest for rest in all_of(file, "ARG") if rest.startswith("IMAGE=")]
    assert all_of(file, "FROM") == ["${IMAGE}"]
    assert re.fullmatch(r"IMAGE=(pytorch|rocm)/pytorch:(\S+_)?2\.11\.0\S*", image)
    assert "release=0.5.13\n" in SCRIPT.read_text("utf-8")
    assert image.removeprefix("IMAGE=") in PAGE.read_text("utf-8")


@each_file
def test_what_runs_has_no_rights_and_writes_to_the_cache_alone(file: Path) -> None:
    assert all_of(file, "USER") == ["fuzzgraph"]
    assert all_of(file, "VOLUME") == ["/cache"]
    told = " ".join(all_of(file, "ENV"))
    kept = re.findall(r"\b(?:HOME|FUZZGRAPH_CACHE|\w+_CACHE_DIR)=(\S+)", told)
    assert len(kept) == 4
    assert all(Path(folder).parts[:2] == ("/", "cache") for folder in kept)
    last = instructions(file)[-1]
    assert last == ("CMD", '["fuzzgraph", "doctor"]')


@each_file
def test_the_command_lies_where_the_script_looks_for_it(file: Path) -> None:
    told = " ".join(all_of(file, "ENV"))
    [folder] = re.findall(r"\bFUZZ_BIN=(\S+)", told)
    assert f"PATH={folder}:$PATH" in told


def test_both_files_install_alike_but_for_kernels_compiled_for_cuda() -> None:
    compiled = "RUN", "containers/install compiled"
    assert [compiled in instructions(file) for file in DOCKERFILES] == [
        "cuda" in file.name for file in DOCKERFILES
    ]
    ends = [[each for each in instructions(file) if each != compiled][-13:] for file in DOCKERFILES]
    assert ends[0] == ends[1]
    assert ends[0][0] == ("WORKDIR", "/opt/source")
    runs = [rest for word, rest in ends[0] if word == "RUN"]
    assert runs[0] == "containers/install requirements"
    assert runs[1].startswith("containers/install package ")


def test_the_versions_are_those_of_make_sglang() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [everything] = re.findall(r"^CONSTRAINTS \?= (\S+)$", makefile, re.M)
    assert '-c $(CONSTRAINTS) -c constraints/$*.txt -e ".[$*]"' in makefile
    install = (FOLDER / "install").read_text("utf-8")
    assert set(re.findall(r"constraints/\w+\.txt", install)) == {
        everything,
        "constraints/sglang.txt",
    }
    assert re.findall(r'"optional-dependencies"\]\["(\w+)"\]', install) == ["sglang"]


PYTHON_OF_AN_IMAGE = """#!/bin/sh
case $1 in
  -c) if [ -e pip-ran ]; then cat after; else cat before; fi ;;
  -m) touch pip-ran
      while [ $# -gt 0 ]; do [ "$1" != -c ] || cat "$2" >> constrained; shift; done ;;
esac
"""
"""Says which torch there is before and after pip, which only writes down what it may choose."""

THERE = "torch==2.11.0+cu128 # triton 3.6.0\n"


def install(
    folder: Path, after: str, says: str = PYTHON_OF_AN_IMAGE
) -> subprocess.CompletedProcess[str]:
    (folder / "containers").mkdir()
    shutil.copy(FOLDER / "install", folder / "containers")
    shutil.copytree(ROOT / "constraints", folder / "constraints")
    (folder / "before").write_text(THERE)
    (folder / "after").write_text(after)
    python = folder / "python"
    python.write_text(says)
    python.chmod(0o755)
    return subprocess.run(
        [folder / "containers" / "install", "requirements"],
        env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )


def test_pip_may_choose_no_torch_but_that_of_the_image(tmp_path: Path) -> None:
    assert install(tmp_path, after=THERE).returncode == 0
    versions = (tmp_path / "constrained").read_text()
    pinned = re.findall(r"^(torch|triton|setuptools|transformers)==(\S+)", versions, re.M)
    assert pinned == [("torch", "2.11.0+cu128"), ("transformers", "5.6.0")]


def test_a_torch_that_names_its_build_to_importers_alone_is_known_to_pip_by_its_version(
    tmp_path: Path,
) -> None:
    """PyPI's wheels say "2.11.0" to pip and "2.11.0+cu130" in `torch.__version__`."""
    site = tmp_path / "site"
    (site / "torch-2.11.0.dist-info").mkdir(parents=True)
    (site / "torch-2.11.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    (site / "torch.py").write_text('__version__ = "2.11.0+cu130"\n')
    (site / "triton.py").write_text('__version__ = "3.6.0"\n')
    asked = f'-c) PYTHONPATH={site} {sys.executable} -c "$2" ;;'
    says = re.sub(r"-c\) if .*;;", lambda _: asked, PYTHON_OF_AN_IMAGE)
    assert install(tmp_path, "", says).returncode == 0
    assert "torch==2.11.0 # triton 3.6.0" in (tmp_path / "constrained").read_text().splitlines()


@pytest.mark.parametrize("after", ["torch==2.11.0+cu128 # triton 3.8.0\n", "torch==2.14.1\n"])
def test_an_image_whose_torch_or_triton_was_replaced_is_not_built(
    tmp_path: Path, after: str
) -> None:
    done = install(tmp_path, after)
    assert done.returncode == 1
    assert "another torch or triton came in the place" in done.stderr


class Machine:
    """A checkout on a machine whose `docker` only writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir()
        (folder / "bin").mkdir()
        shutil.copy(SCRIPT, folder / ".ci")
        docker = folder / "bin" / "docker"
        docker.write_text(STAND_IN)
        docker.chmod(0o755)

    def run(self, *words: str, **environment: str) -> int:
        done = subprocess.run(
            [self.folder / ".ci" / "container", *words],
            env={
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(self.folder / "home"),
                "CALLS": str(self.folder / "calls"),
                **environment,
            },
            capture_output=True,
        )
        return done.returncode

    @property
    def calls(self) -> list[str]:
        return [call.strip() for call in (self.folder / "calls").read_text().splitlines()]

    @property
    def environment(self) -> str:
        return (self.folder / "calls.environment").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("kind", "device"), [("cuda", "--gpus all"), ("rocm", "--device /dev/kfd --device /dev/dri")]
)
def test_a_night_builds_the_image_and_runs_in_it(machine: Machine, kind: str, device: str) -> None:
    assert machine.run(kind) == 0
    build, prune, night = machine.calls
    assert build == f"build --file containers/{kind}.Dockerfile --tag fuzzgraph-{kind} ."
    assert prune == f"image prune --force --filter label=fuzzgraph={kind}"
    assert night.startswith(f"run --rm --init {device} ")
    assert f" --user {os.getuid()}:{os.getgid()} " in night
    assert f" --volume {machine.folder}:{machine.folder} --workdir {machine.folder} " in night
    assert f" --volume {machine.folder}/home/.cache/fuzzgraph-container:/cache " in night
    assert night.endswith(f" fuzzgraph-{kind} .ci/fuzz nightly")


def test_a_night_is_divided_over_real_engines(machine: Machine) -> None:
    machine.run("cuda", FUZZ_TARGETS="")
    [told] = re.findall(r"^FUZZ_TARGETS=((?:.*\n)+?)(?=\w+=)", machine.environment, re.M)
    names = [entry.partition("==")[0] for entry in told.split()]
    assert set(names) <= set(target_names())
    assert [entry for entry in told.split() if "==" not in entry] == ["builtin-triton"]
    assert {"sglang-triton", "sglang-triton-verify", "sglang-gdn"} < set(names)
    assert " --env FUZZ_TARGETS " in machine.calls[-1]


def test_a_target_or_targets_that_are_named_are_kept(machine: Machine) -> None:
    machine.run("cuda", FUZZ_TARGET="sglang-triton", FUZZ_RELEASE="0.5.23")
    assert "FUZZ_TARGETS=" not in machine.environment
    machine.run("cuda", FUZZ_TARGETS="sglang-mamba==0.5.13")
    assert "FUZZ_TARGETS=sglang-mamba==0.5.13\n" in machine.environment


def test_another_command_another_base_and_a_summary_are_handed_on(machine: Machine) -> None:
    summary = machine.folder / "summary.md"
    machine.run(
        "cuda", "fuzzgraph", "doctor",
        FUZZ_IMAGE="pytorch/pytorch:other", FUZZ_GPUS="device=1", GITHUB_STEP_SUMMARY=str(summary),
    )  # fmt: skip
    assert machine.calls[0].endswith(" --build-arg IMAGE=pytorch/pytorch:other .")
    assert " --gpus device=1 " in machine.calls[-1]
    assert (
        f" --volume {summary}:/summary.md --env GITHUB_STEP_SUMMARY=/summary.md "
        in (machine.calls[-1])
    )
    assert machine.calls[-1].endswith(" fuzzgraph-cuda fuzzgraph doctor")


def test_another_kind_is_refused_before_docker_is_called(machine: Machine) -> None:
    assert machine.run("tpu") == 2
    assert not (machine.folder / "calls").exists()


def test_the_workflow_gives_a_gpu_the_container_and_a_cpu_the_script() -> None:
    steps = yaml.safe_load(NIGHTLY.read_text("utf-8"))["jobs"]["fuzz"]["steps"]
    runs = {step["run"]: step["if"] for step in steps if "run" in step}
    on_a_gpu = {run for run, when in runs.items() if when == "${{ matrix.container }}"}
    assert on_a_gpu == {
        ".ci/container ${{ matrix.container }} fuzzgraph doctor",
        ".ci/container ${{ matrix.container }}",
    }
    others = set(runs) - on_a_gpu
    assert others == {"make setup", ".venv/bin/fuzzgraph doctor", ".ci/fuzz nightly"}
    assert {runs[run] for run in others} == {"${{ !matrix.container }}"}


def test_what_the_workflow_makes_of_its_variables_is_a_matrix(tmp_path: Path) -> None:
    [step] = yaml.safe_load(NIGHTLY.read_text("utf-8"))["jobs"]["machines"]["steps"]
    output = tmp_path / "output"
    told = {"NVIDIA": "true", "AMD": "true", "GITHUB_OUTPUT": str(output)}
    subprocess.run(
        ["bash", "-c", step["run"]], env={"PATH": os.environ["PATH"], **told}, check=True
    )
    name, _, value = output.read_text().partition("=")
    machines = yaml.safe_load(value)["include"]
    assert name == "matrix"
    assert [(one["name"], one["container"]) for one in machines] == [
        ("cpu", ""),
        ("nvidia", "cuda"),
        ("amd", "rocm"),
    ]
    assert all(one["name"] in one["runner"] for one in machines[1:])


def test_every_variable_of_the_script_is_on_the_page() -> None:
    named = set(re.findall(r"^#   (FUZZ_\w+)", SCRIPT.read_text("utf-8"), re.M))
    assert named
    assert {name for name in named if f"`{name}`" not in PAGE.read_text("utf-8")} == set()
