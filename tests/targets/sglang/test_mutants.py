"""Mutants of a released engine: its own functions and its own Triton kernels are changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.mutants import Sought, log, run_mutants
from fuzzgraph.mutants.drawing import candidates
from fuzzgraph.mutants.records import Mutant
from fuzzgraph.mutants.source import Source
from fuzzgraph.run.spec import Setup
from tests.targets.sglang.released import release_path

pytestmark = pytest.mark.sglang

RELEASE = "0.5.23"
RUNNER = "sglang.srt.model_executor.cuda_graph_buffer_registry"
KERNEL = "sglang.kernels.ops.attention.metadata"


def of_line(module: str, before: str, after: str) -> Mutant:
    """The change of the first line that reads so."""
    path = release_path(RELEASE).joinpath(*module.split(".")).with_suffix(".py")
    source = Source.read(str(path))
    every = candidates(module, source, range(1, len(source.lines)))
    return next(
        one.mutant for one in every if (one.mutant.before, one.mutant.after) == (before, after)
    )


def test_changes_of_the_runner_and_of_a_kernel_are_found(tmp_path: Path) -> None:
    named = (
        of_line(RUNNER, "dst = slot.buffer[:raw_n]", "dst = slot.buffer[:(raw_n) - 1]"),
        of_line(KERNEL, "acc += val", "acc -= val"),
    )
    setup = Setup(target="sglang-fa3", release=RELEASE)
    sought = Sought(setup=setup, seed=1, sample=2, seconds=0.5)
    found = run_mutants(sought, tmp_path, named=named)
    assert {one.mutant.id: one.outcome for one in found.results} == {
        one.id: "found" for one in named
    }
    assert log.read(tmp_path / log.NAME).ground is not None
