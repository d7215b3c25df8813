"""What a compiled function takes is read from the source that a release ships."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import AdapterUnavailable, KernelRefused
from fuzzgraph.targets.offline.cxx_signatures import (
    check_binding,
    check_template,
    parameters_of,
    template_of,
)

SOURCE = """
// struct Kernel { static void run(int wrong) {} };
template <int64_t kBytes, typename DType, ns::Layout kLayout, bool kFast>
struct Kernel {
  template <int kSplit>
  static void launch(int n) { run(n); }
  static void run(
      const tvm::ffi::TensorView k,   // [n, D]
      const tvm::ffi::Optional<tvm::ffi::TensorView> scale,
      const float eps,
      const uint32_t count = 3) {
    use(k, count);
  }
};
inline tvm::ffi::Tensor plan(const tvm::ffi::TensorView lens, const bool ring) {
  return plan2(lens);
}
"""


def test_parameters_of_a_method_are_those_of_its_definition() -> None:
    found = [(each.name, each.type) for each in parameters_of(SOURCE, "run", "Kernel")]
    assert found == [
        ("k", "tvm::ffi::TensorView"),
        ("scale", "tvm::ffi::Optional<tvm::ffi::TensorView>"),
        ("eps", "float"),
        ("count", "uint32_t"),
    ]


def test_parameters_of_a_function_of_its_own_are_found() -> None:
    assert [each.name for each in parameters_of(SOURCE, "plan")] == ["lens", "ring"]


def test_parameters_of_a_template_have_their_kinds() -> None:
    found = [(each.name, each.type) for each in template_of(SOURCE, "Kernel")]
    assert found == [
        ("kBytes", "int64_t"),
        ("DType", "type"),
        ("kLayout", "ns::Layout"),
        ("kFast", "bool"),
    ]


def test_a_source_without_the_function_is_named() -> None:
    with pytest.raises(AdapterUnavailable, match="defines no Kernel::forward"):
        parameters_of(SOURCE, "forward", "Kernel")
    with pytest.raises(AdapterUnavailable, match="defines no struct Other"):
        template_of(SOURCE, "Other")


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        ((torch.zeros(1), None, 0.5), "takes 4 arguments .k, scale, eps, count.; got 3"),
        ((None, None, 0.5, 1), "k must be tvm::ffi::TensorView; got a NoneType"),
        ((torch.zeros(1), 2, 0.5, 1), "scale must be"),
        ((torch.zeros(1), None, "a", 1), "eps must be float; got a str"),
        ((torch.zeros(1), None, 0.5, 1.5), "count must be uint32_t; got a float"),
    ],
)
def test_what_a_binding_refuses_is_refused(args: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        check_binding("run", parameters_of(SOURCE, "run", "Kernel"), args, "a.cuh")


def test_a_binding_converts_numbers_and_takes_what_is_optional() -> None:
    takes = parameters_of(SOURCE, "run", "Kernel")
    check_binding("run", takes, (torch.zeros(1), None, 1, True), "a.cuh")
    check_binding("run", takes, (torch.zeros(1), torch.zeros(1), 0.5, 2), "a.cuh")


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (["8", "bf16_t", "ns::A"], "has 4 template parameters"),
        (["bf16_t", "8", "ns::A", "true"], "kBytes must be int64_t; got bf16_t"),
        (["8", "bf16_t", "true", "ns::A"], "kLayout must be ns::Layout; got true"),
        (["8", "bf16_t", "ns::A", "2"], "kFast must be bool; got 2"),
        ([str(2**63), "bf16_t", "ns::A", "true"], "kBytes must be int64_t; got 92"),
    ],
)
def test_what_a_compiler_refuses_is_refused(args: list[str], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        check_template("Kernel", template_of(SOURCE, "Kernel"), args, "a.cuh")


def test_a_number_below_zero_is_no_unsigned_one() -> None:
    declared = template_of("template <uint32_t kSize> struct Kernel {", "Kernel")
    check_template("Kernel", declared, ["true"], "a.cuh")
    with pytest.raises(KernelRefused, match="kSize must be uint32_t; got -1"):
        check_template("Kernel", declared, ["-1"], "a.cuh")


def test_arguments_of_a_template_of_the_right_kinds_pass() -> None:
    check_template("Kernel", template_of(SOURCE, "Kernel"), ["8", "bf16_t", "ns::A", "1"], "a.cuh")


def test_a_parameter_of_a_template_with_a_default_may_be_left_out() -> None:
    declared = template_of("template <int32_t N, bool kFast = true> struct Kernel {", "Kernel")
    assert [each.default for each in declared] == ["", "true"]
    check_template("Kernel", declared, ["8"], "a.cuh")
    with pytest.raises(KernelRefused, match="has 2 template parameters"):
        check_template("Kernel", declared, [], "a.cuh")
