"""Kernels of servers run over lanes where the stock interpreter lacks what they use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton

from fuzzgraph.lanes import lanes
from tests.lanes.kernels import planted, servers


def test_a_launch_that_waits_for_the_one_before_runs() -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    with lanes() as report:
        servers.ordered[(4,)](x, out, launch_pdl=True)
    assert out.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert (report.launches, dict(report.fallbacks)) == (1, {})


def test_an_autotuned_kernel_takes_its_first_config() -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    with lanes() as report:
        servers.tuned[(4,)](x, out, 4)
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert report.launches == 1, "no config is run to time it"


def test_autotuners_time_their_configs_again_afterwards() -> None:
    before = triton.runtime.autotuner.Autotuner._bench
    with lanes():
        assert triton.runtime.autotuner.Autotuner._bench is not before
    assert triton.runtime.autotuner.Autotuner._bench is before


def test_a_compiled_kernel_is_timed_as_ever() -> None:
    asked: list[Any] = []

    def timed(*_: Any, **__: Any) -> list[float]:
        asked.append(1)
        return [1.0]

    class Compiled:
        fn = None

    with lanes():
        tuner = servers.tuned
        inner, tuner.fn = tuner.fn, Compiled()
        tuner._do_bench, kept = timed, tuner._do_bench
        try:
            tuner.nargs = {}
            tuner._bench(config=tuner.configs[0])
        finally:
            tuner.fn, tuner._do_bench = inner, kept
            vars(tuner).pop("do_bench", None)
    assert asked == [1]


@pytest.mark.parametrize("others", [False, True])
def test_a_grid_may_replace_arguments(others: bool) -> None:
    x, y, out = torch.arange(4.0), torch.arange(4.0) + 10, torch.zeros(4)

    def grid(arguments: dict[str, Any]) -> tuple[int]:
        assert arguments["count"] == 4
        if others:
            arguments["x"] = y
        return (1,)

    with lanes() as report:
        planted.copy[grid](x, out, 4, BLOCK=4)
    assert out.tolist() == (y if others else x).tolist()
    assert not report.accesses


def test_heuristics_see_arguments_as_they_were_passed() -> None:
    x, out = torch.arange(2.0), torch.zeros(2)
    with lanes():
        servers.added[lambda arguments: (arguments["count"],)](x, out, 2)
    assert out.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("kernel", [servers.by_alias, servers.by_alias_and_print])
def test_functions_of_the_language_may_have_other_names(kernel: Any) -> None:
    x, out, before = torch.tensor([0.0, 1.0]), torch.zeros(2), servers.exp
    with lanes() as report:
        kernel[(2,)](x, out)
    torch.testing.assert_close(out, 2 * x.exp() - 1)
    assert servers.exp is before
    assert bool(report.fallbacks) == (kernel is servers.by_alias_and_print)
