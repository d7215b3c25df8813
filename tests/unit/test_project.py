"""The project as a whole: import floors, declared dependencies, what a wheel holds."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fuzzgraph"
CODE = ("fuzzgraph", "strategies", "oracles", "tests", "corpus", "constraints", "docs", ".ci")
STDLIB = {*sys.stdlib_module_names, "tomllib"}  # since Python 3.11
FOREIGN_ENGINES = {"sglang", "vllm", "flashinfer", "aiter", "sgl_kernel"}

needs_checkout = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="needs the repository, not an installed wheel"
)
pytestmark = needs_checkout


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def requirement_names(requirements: list[str]) -> set[str]:
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements)
    return {name.group().lower().replace("_", "-") for name in names if name}


def copy_of_project(folder: Path) -> Path:
    """What a build reads, links kept, so that nothing is built inside the checkout."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("fuzzgraph", "strategies", "oracles", "corpus"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports;"
    command += " sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )


def test_imports_go_down_the_floors_only() -> None:
    run = lint_imports(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


def test_an_import_that_climbs_is_caught(tmp_path: Path) -> None:
    folder = copy_of_project(tmp_path)
    (folder / "oracles" / "climber.py").write_text("import fuzzgraph.strategies\n")
    run = lint_imports(folder)
    assert run.returncode != 0
    assert "fuzzgraph.oracles.climber -> fuzzgraph.strategies" in run.stdout


def test_a_module_without_a_floor_is_caught(tmp_path: Path) -> None:
    folder = copy_of_project(tmp_path)
    (folder / "fuzzgraph" / "homeless.py").write_text("")
    run = lint_imports(folder)
    assert run.returncode != 0
    assert "fuzzgraph.homeless" in run.stdout


@pytest.mark.parametrize(
    ("module", "imported"),
    [("offline", "sglang.release"), ("sglang", "builtin.target"), ("offline", "builtin.target")],
)
def test_an_engine_that_shared_code_or_another_engine_knows_is_caught(
    tmp_path: Path, module: str, imported: str
) -> None:
    folder = copy_of_project(tmp_path)
    path = folder / "fuzzgraph" / "targets" / module / "knowing.py"
    path.write_text(f"import fuzzgraph.targets.{imported}\n")
    run = lint_imports(folder)
    assert run.returncode != 0
    assert f"fuzzgraph.targets.{module}.knowing -> fuzzgraph.targets.{imported}" in run.stdout


def imported_names(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def package_sources() -> Iterator[Path]:
    for folder in (PACKAGE, ROOT / "strategies", ROOT / "oracles"):
        yield from (path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def test_everything_imported_is_a_declared_dependency() -> None:
    declared = project()["project"]
    known = requirement_names(declared["dependencies"])
    for extra in declared["optional-dependencies"].values():
        known |= requirement_names(extra)
    distributions = packages_distributions()
    undeclared = {}
    for source in package_sources():
        for name in imported_names(source) - {"fuzzgraph"} - FOREIGN_ENGINES:
            owners = {d.lower().replace("_", "-") for d in distributions.get(name, [name])}
            if name not in STDLIB and not owners & known:
                undeclared[str(source.relative_to(ROOT))] = name
    assert not undeclared


def always_there() -> set[str]:
    """Import names of what every environment of a developer has."""
    declared = project()["project"]
    needed = requirement_names(declared["dependencies"] + declared["optional-dependencies"]["dev"])
    owned = packages_distributions().items()
    there = {name for name, by in owned if {d.lower().replace("_", "-") for d in by} & needed}
    return there | needed


def test_types_do_not_depend_on_what_may_be_absent() -> None:
    """Else a check passes or fails with an engine's companions, which not every machine has."""
    [skipped] = [
        {name.removesuffix(".*") for name in override["module"]}
        for override in project()["tool"]["mypy"]["overrides"]
        if override.get("follow_imports") == "skip" and override["ignore_missing_imports"]
    ]
    sources = [*package_sources(), *(ROOT / "tests").rglob("*.py")]
    used = set().union(*map(imported_names, sources))
    ours = {"fuzzgraph", "tests", "benchmarks", "compiled"}  # the last one is a benchmark's
    assert used - ours - STDLIB - always_there() - FOREIGN_ENGINES <= skipped


def test_the_engine_extras_are_imported_by_no_module_outside_targets() -> None:
    wrong = [
        str(source.relative_to(ROOT))
        for source in package_sources()
        if "targets" not in source.parts and imported_names(source) & FOREIGN_ENGINES
    ]
    assert not wrong


def test_torch_is_not_pinned_so_that_a_gpu_machine_keeps_its_own() -> None:
    [torch] = [r for r in project()["project"]["dependencies"] if r.startswith("torch")]
    assert re.fullmatch(r"torch>=[\d.]+", torch)
    assert "triton" not in requirement_names(project()["project"]["dependencies"])


def pins(name: str) -> list[str]:
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def direct_dependencies() -> list[str]:
    declared = project()["project"]
    extras = declared["optional-dependencies"]
    return [*declared["dependencies"], *extras["dev"], *extras["triton"]]


@pytest.mark.parametrize("name", ["dev", "oldest", "newest"])
def test_the_constraints_pin_every_direct_dependency(name: str) -> None:
    assert all("==" in line for line in pins(name))
    assert requirement_names(pins(name)) == requirement_names(direct_dependencies())


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    floors = {line.partition(";")[0].strip() for line in direct_dependencies()}
    oldest = {line.partition(";")[0].strip().replace("==", ">=") for line in pins("oldest")}
    # The oldest torch for a GPU pins its own Triton, which is older than those that lanes know.
    assert {line for line in oldest if not line.startswith("triton")} == {
        line for line in floors if not line.startswith("triton")
    }


@pytest.mark.parametrize("name", ["dev", "oldest", "newest"])
def test_setup_reads_torch_and_triton_from_the_constraints(name: str) -> None:
    """They come first and by name: pip would else bring another torch, gigabytes for a GPU."""
    makefile = (ROOT / "Makefile").read_text()
    assert "grep -E '^(torch|triton)==' $(CONSTRAINTS)" in makefile
    found = [line for line in pins(name) if re.match(r"(torch|triton)==", line)]
    assert [line.partition("==")[0] for line in found] == ["torch", "triton"]
    assert all(re.fullmatch(r"\w+==[\d.]+", line) for line in found)


def modules_with_examples() -> list[str]:
    names = {
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for path in package_sources()
        if ">>>" in path.read_text(encoding="utf-8")
    }
    real = {re.sub(r"^(strategies|oracles)\b", r"fuzzgraph.\1", name) for name in names}
    return sorted(name.removesuffix(".__init__") for name in real)


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed


def text_files() -> Iterator[Path]:
    ours = (p for p in ROOT.iterdir() if p.name != ".git")  # a file in a worktree
    yield from (p for p in ours if p.is_file() and p.suffix != ".pyc")
    for name in CODE:
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                yield path


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    homes = "|".join(("work", "root", "home", "Users"))
    personal = re.compile(rf"(?<![\w.$}}])/(?:{homes})/\w")
    scratch = "/tmp/" + "lab"
    blamed = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if personal.search(line) or scratch in line
    ]
    assert not blamed


def built(folder: Path) -> Path:
    """The wheel of the project in a folder, built without network."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder / "out"), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    [path] = (folder / "out").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(copy_of_project(tmp_path_factory.mktemp("project")))


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel_file)


@pytest.mark.slow
def test_a_wheel_holds_strategies_and_oracles_as_real_files(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for folder in ("strategies", "oracles"):
        for path in (ROOT / folder).rglob("*.py"):
            inside = f"fuzzgraph/{path.relative_to(ROOT).as_posix()}"
            assert inside in names
            assert wheel.read(inside) == path.read_bytes()


@pytest.mark.slow
def test_a_wheel_claims_one_top_level_name(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fuzzgraph"}
    assert "fuzzgraph/py.typed" in wheel.namelist()


@pytest.mark.slow
def test_a_wheel_offers_the_command_and_the_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    [entry_points] = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    text = wheel.read(entry_points).decode()
    assert "fuzzgraph = fuzzgraph.cli:main" in text
    assert "fuzzgraph = fuzzgraph.pytest_plugin" in text
    [metadata] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    fields = Parser().parsestr(wheel.read(metadata).decode())
    assert fields["License-Expression"] == "Apache-2.0"
