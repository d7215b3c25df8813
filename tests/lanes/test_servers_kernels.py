"""Kernels of servers run over lanes where the stock interpreter lacks what they use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton

from fuzzgraph.lanes import lanes
from fuzzgraph.lanes.bfloat16_bits import narrowed
from tests.lanes.kernels import planted, servers


def test_a_launch_that_waits_for_the_one_before_runs() -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    with lanes() as report:
        servers.ordered[(4,)](x, out, launch_pdl=True)
    assert out.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert (report.launches, dict(report.fallbacks)) == (1, {})


def test_an_autotuned_kernel_takes_its_smallest_config() -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    with lanes() as report:
        servers.tuned[(4,)](x, out, 4)
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert report.launches == 1, "no config is run to time it"


@pytest.mark.parametrize(("least", "by"), [(1, 2), (3, 4)])
def test_a_config_that_does_not_compile_is_passed_over(least: int, by: int) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    with lanes():
        servers.tuned_from[(4,)](x, out, least)
    assert out.tolist() == [by * number for number in range(4)]


def test_a_kernel_without_a_config_that_compiles_fails_at_its_assertion() -> None:
    with lanes(), pytest.raises(Exception, match="AssertionError"):
        servers.tuned_from[(4,)](torch.arange(4.0), torch.zeros(4), 5)


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


@pytest.mark.parametrize("alone", [False, True])
def test_the_devices_library_is_computed(alone: bool) -> None:
    x, out = torch.tensor([0.5, 1.5, 2.25, -0.5]), torch.zeros(4)
    with lanes() as report:
        servers.of_the_library[(4,)](x, out, ALONE=alone)
    halves_away_from_zero = torch.tensor([1.0, 2.0, 2.0, -1.0])
    torch.testing.assert_close(out, x.log1p() + halves_away_from_zero + x.tanh())
    assert bool(report.fallbacks) == alone


def test_the_devices_library_refuses_a_type_that_it_has_no_function_of() -> None:
    x, out = torch.zeros(1, dtype=torch.float16), torch.zeros(1)
    with lanes(), pytest.raises(Exception, match=r"libdevice.tanh takes fp32 or fp64.*got fp16"):
        servers.of_the_library_in_halves[(1,)](x, out)


def test_the_devices_library_is_the_stock_one_again_afterwards() -> None:
    names = vars(servers)
    before = names["libdevice"].tanh, names["fast_tanh"]
    x = torch.zeros(1)
    with lanes():
        servers.of_the_library[(1,)](x, torch.zeros(1), ALONE=False)
    assert (names["libdevice"].tanh, names["fast_tanh"]) == before


@pytest.mark.parametrize("alone", [False, True])
def test_a_loops_variable_can_be_cast(alone: bool) -> None:
    x, out = torch.tensor([1.0, 10.0, 100.0]), torch.zeros(3)
    counts = torch.tensor([3, 0, 1], dtype=torch.int32)
    with lanes() as report:
        servers.by_cast_index[(3,)](x, out, counts, ALONE=alone)
    assert out.tolist() == [133.0, 22.0, 23.0]
    assert bool(report.fallbacks) == alone
    assert "range" not in vars(servers), "the kernel's module is as it was"


def test_the_variable_of_a_last_loop_can_be_cast_though_rows_run_different_rounds() -> None:
    x, out = torch.tensor([1.0, 10.0, 100.0]), torch.zeros(3, 4)
    counts = torch.tensor([3, 0, 1], dtype=torch.int32)
    with lanes() as report:
        for _ in range(3):  # recorded, then played back
            servers.by_cast_index_to_the_end[(3,)](x, out, counts)
    assert out.tolist() == [[1.0, 10.0, 100.0, 0.0], [0.0] * 4, [3.0, 0.0, 0.0, 0.0]]
    assert not report.fallbacks
    assert report.played


@pytest.mark.parametrize("alone", [False, True])
def test_a_constant_of_the_module_and_a_tensor_make_a_tensor(alone: bool) -> None:
    x, out = torch.arange(8.0), torch.zeros(8)
    with lanes() as report:
        servers.by_constant_of_the_module[(1,)](x, out, ALONE=alone)
    assert out.tolist() == [0.0] * 4 + [7.0, 6.0, 5.0, 4.0]
    assert bool(report.fallbacks) == alone


def brain_floats(count: int, seed: int) -> torch.Tensor:
    """Numbers of either sign, most of them of the size of 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator).bfloat16()


@pytest.mark.parametrize("alone", [False, True])
def test_arithmetic_in_bfloat16_is_torchs(alone: bool) -> None:
    x, y = brain_floats(64, seed=1), brain_floats(64, seed=2)
    y[:4] = x[:4]
    out, less = torch.zeros_like(x), torch.zeros(64, dtype=torch.int32)
    with lanes() as report:
        servers.by_brain_floats[(64,)](x, y, out, less, ALONE=alone)
    chosen = x > torch.tensor(1.01).bfloat16()
    expected = torch.where(chosen, (x * y) - torch.tensor(0.3).bfloat16(), -(x + y))
    assert out.tolist() == expected.tolist()
    assert less.tolist() == (x < y).int().tolist()
    assert bool(report.fallbacks) == alone


def test_arithmetic_in_bfloat16_is_the_same_when_a_launch_is_played_back() -> None:
    outs = []
    with lanes() as report:
        for _ in range(4):
            x, y = brain_floats(64, seed=1), brain_floats(64, seed=2)
            out, less = torch.zeros_like(x), torch.zeros(64, dtype=torch.int32)
            servers.by_brain_floats[(64,)](x, y, out, less, ALONE=False)
            outs.append(out.tolist())
    assert report.played, "later launches play back what the first ones recorded"
    assert all(each == outs[0] for each in outs)


@pytest.mark.parametrize("alone", [False, True])
def test_sums_of_bfloat16_are_those_of_its_numbers(alone: bool) -> None:
    x = brain_floats(4 * 64, seed=7)
    squares = x.view(4, 8, 8)
    found = []
    with lanes() as report:
        for _ in range(4):
            outs = x.new_empty(4, 8), x.new_empty(4)
            servers.sums_of_brain_floats[(4,)](x, *outs, SIDE=8, ALONE=alone)
            found.append(outs)
    for rows, total in found:
        # What float32 loses of so few numbers does not change how they are rounded.
        torch.testing.assert_close(rows, squares.double().sum(2).bfloat16(), rtol=0, atol=0)
        torch.testing.assert_close(total, squares.double().sum((1, 2)).bfloat16(), rtol=0, atol=0)
    assert bool(report.fallbacks) == alone
    assert bool(report.played) != alone, "later launches play back what the first ones recorded"


def test_a_fused_product_of_bfloat16_is_rounded_to_it() -> None:
    x, y = brain_floats(64, seed=3), brain_floats(64, seed=4)
    out = torch.zeros_like(x)
    with lanes():
        servers.fused_brain_floats[(64,)](x, y, out)
    assert out.tolist() == (x.double() * y.double() + x.double()).bfloat16().tolist()


def test_a_dot_of_bfloat16_is_summed_in_float32() -> None:
    x, y = brain_floats(256, seed=5).view(16, 16), brain_floats(256, seed=6).view(16, 16)
    out = torch.zeros(16, 16)
    with lanes():
        servers.dot_of_brain_floats[(1,)](x, y, out, SIDE=16)
    torch.testing.assert_close(out, x.float() @ y.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38, -0.0, 1e-40])
def test_a_float_is_rounded_to_the_nearest_bfloat16(value: float) -> None:
    given = torch.tensor([value, 1.00390625, 1.01171875])
    rounded = torch.from_numpy(narrowed(given.numpy()).view("int16")).view(torch.bfloat16)
    torch.testing.assert_close(rounded, given.bfloat16(), rtol=0, atol=0, equal_nan=True)
    assert rounded.signbit().tolist() == given.signbit().tolist()
