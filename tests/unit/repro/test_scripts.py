"""Every kind of finding as a standalone script, run where FuzzGraph cannot be imported."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.repro import export_script
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.text.finding_text import headline
from tests.unit.repro.faulty import (
    KINDS,
    GraphForgetsPositions,
    Kind,
    NoPositions,
    PadsEagerBatches,
    ReadsBeyondItsKeys,
    RoundsEagerOtherwise,
    Wavers,
    engine,
    once,
)
from tests.unit.repro.running import run_scripts

LONGEST = 700
"""Lines of a script for a case of this size; with kernel source a few hundred more."""
MODEL = 500
"""Lines that the model of a kernel adds, with all that it calls."""


class Exported:
    """The scripts of one kind, from the engine that has the bug and from the healthy one."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.finding = kind.finding()
        self.bad = export_script(kind.case, self.finding, kind.target(), proven=False)
        self.good = export_script(kind.case, self.finding, BuiltinTarget(), proven=False)


@pytest.fixture(scope="module")
def exported() -> dict[str, Exported]:
    return {kind.name: Exported(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def ran(
    exported: dict[str, Exported], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[object, str]]:
    scripts = {f"{name}-bad": each.bad for name, each in exported.items()}
    scripts |= {f"{name}-good": each.good for name, each in exported.items()}
    return run_scripts(tmp_path_factory.mktemp("scripts"), scripts)


NAMES = [kind.name for kind in KINDS]


@pytest.mark.parametrize("name", NAMES)
def test_the_script_of_the_faulty_engine_exits_1_and_prints_the_finding(
    name: str, exported: dict[str, Exported], ran: dict[str, tuple[object, str]]
) -> None:
    code, printed = ran[f"{name}-bad"]
    assert code == 1, printed
    assert printed.startswith(headline(exported[name].finding))
    assert exported[name].kind.says in printed


IN_OTHER_WORDS = {"left-over", "survival"}
"""Kinds of which the oracle says what depends on what, and the script what it saw of it."""


@pytest.mark.parametrize("name", sorted({*NAMES} - IN_OTHER_WORDS))
def test_the_script_says_what_the_oracle_says(
    name: str, exported: dict[str, Exported], ran: dict[str, tuple[object, str]]
) -> None:
    sentence = exported[name].finding.message.partition("): ")[2].partition("; read from: ")[0]
    assert sentence and f"  {sentence}\n" in ran[f"{name}-bad"][1]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_export_from_the_healthy_engine_exits_0(
    name: str, ran: dict[str, tuple[object, str]]
) -> None:
    code, printed = ran[f"{name}-good"]
    assert code == 0, printed
    assert printed == "Not reproduced.\n"


def test_a_script_shows_a_kernel_that_reads_beyond_what_it_was_passed(tmp_path: Path) -> None:
    """By whatever names the models of kernels call it that one calls inside of another."""
    wrong = engine(model=ReadsBeyondItsKeys)
    finding = Kind("", lambda: wrong, once(4, 3), "reference", "attention", "").finding()
    text = export_script(once(4, 3), finding, wrong, proven=False)
    ((code, printed),) = run_scripts(tmp_path, {"script": text}).values()
    assert code == 1, printed
    assert "cu_seqlens_k must not end beyond the 2 entries" in printed
    assert headline(finding) in printed


def _accusation(wrong: BuiltinTarget, healthy: BuiltinTarget, case: Case, oracle: str) -> str:
    """What a wrong engine is accused of, as a script of an engine that the oracles acquit."""
    finding = Kind("", lambda: wrong, case, oracle, "attention", "").finding()
    assert not Execution(healthy, cache_size=0).run_case(case).findings
    return export_script(case, finding, healthy, proven=False)


def _exits_0(text: str, folder: Path) -> None:
    ((code, printed),) = run_scripts(folder, {"script": text}).values()
    assert code == 0, printed


def test_a_script_allows_what_the_oracle_allows_where_plain_torch_rounds_better(
    tmp_path: Path,
) -> None:
    case = Case(
        schema_version=1,
        config=EngineConfig(capture_bs=(1,), kv_pool_pages=128),
        steps=(ReplayStep(rows=(BatchRow(request=6, seq_len=5),)),),
        seed=183,
    )
    wrong, healthy = engine(model=NoPositions), BuiltinTarget()
    _exits_0(_accusation(wrong, healthy, case, "reference"), tmp_path)


def test_a_script_does_not_compare_rows_that_the_engine_pads_an_eager_batch_with(
    tmp_path: Path,
) -> None:
    wrong, healthy = engine(decode=GraphForgetsPositions), engine(decode=PadsEagerBatches)
    _exits_0(_accusation(wrong, healthy, once(4), "eager"), tmp_path)


def test_a_script_compares_bit_for_bit_only_runs_of_the_same_padded_size(tmp_path: Path) -> None:
    wrong, healthy = engine(decode=GraphForgetsPositions), engine(decode=RoundsEagerOtherwise)
    _exits_0(_accusation(wrong, healthy, once(4), "eager"), tmp_path)


def test_a_script_does_not_compare_an_engine_bit_for_bit_that_differs_from_itself(
    tmp_path: Path,
) -> None:
    wrong, healthy = engine(decode=GraphForgetsPositions), engine(decode=Wavers)
    _exits_0(_accusation(wrong, healthy, once(4, 3), "eager"), tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_needs_torch_only(name: str, exported: dict[str, Exported]) -> None:
    tree = ast.parse(exported[name].bad)
    modules = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {"__future__", "base64", "dataclasses", "sys", "zlib", "torch"}
    allowed |= {"collections.abc", "typing"}
    beside = {"triton": {"os", "triton"}, "kernel-model": {"numpy", "numpy.typing"}}
    assert modules <= allowed | beside.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_a_script_has_every_name_that_its_annotations_use(
    name: str, exported: dict[str, Exported]
) -> None:
    tree = ast.parse(exported[name].bad)
    there = set(dir(builtins))
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            there |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            there.add(node.name)
        elif isinstance(node, ast.Assign):
            there |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if part is not None:
                used |= {one.id for one in ast.walk(part) if isinstance(one, ast.Name)}
    assert used <= there


@pytest.mark.parametrize("name", NAMES)
def test_a_script_names_no_path_of_this_machine(name: str, exported: dict[str, Exported]) -> None:
    text = exported[name].bad
    assert str(Path.home()) not in text
    assert not re.findall(r"['\"\s(]/(?:home|root|tmp|work|usr|var)/", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_stays_short_enough_to_read(name: str, exported: dict[str, Exported]) -> None:
    allowed = LONGEST + (MODEL if name == "kernel-model" else 0)
    assert len(exported[name].bad.splitlines()) < allowed


def test_a_script_says_which_line_of_the_engine_issued_an_operation(
    exported: dict[str, Exported],
) -> None:
    lines = exported["red-zone"].bad.splitlines()
    written = next(i for i, line in enumerate(lines) if "out=kv_indices" in line)
    assert re.search(
        r"# kv_indices\.py:\d+ in write_indices", "\n".join(lines[written - 1 : written + 1])
    )


def test_a_script_shows_where_the_buffer_was_allocated(exported: dict[str, Exported]) -> None:
    text = exported["red-zone"].bad
    assert re.search(r"# kv_indices\.py:\d+ in __init__.*\n?kv_indices = region\(", text)


def test_a_script_tells_the_case_as_a_table(exported: dict[str, Exported]) -> None:
    text = exported["history"].bad
    assert "raw/padded rows (request:seq_len)" in text
    assert "1/2        0:5  after finishing 1" in text


def test_a_script_is_the_same_each_time_it_is_exported(exported: dict[str, Exported]) -> None:
    kind = exported["red-zone"].kind
    again = export_script(kind.case, exported["red-zone"].finding, kind.target(), proven=False)
    assert again == exported["red-zone"].bad


def test_a_kernel_comes_with_its_source(exported: dict[str, Exported]) -> None:
    text = exported["triton"].bad
    assert "@triton.jit\ndef _attend(" in text
    assert 'os.environ["TRITON_INTERPRET"] = "1"' in text
