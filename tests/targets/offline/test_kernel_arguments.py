"""A kernel's model refuses what the binding of the real kernel cannot convert."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3Or4, check_arguments
from fuzzgraph.kernel_models.block_indexer import compress_group_keys
from fuzzgraph.kernel_models.flash_attention import flash_attn_with_kvcache
from fuzzgraph.kernel_models.flashinfer import BatchMLAPagedAttentionWrapper
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.targets.offline.kernel_arguments import checks_kinds, put_model, strict
from fuzzgraph.targets.offline.stub import Stub


def wrapper() -> Any:
    return strict(BatchMLAPagedAttentionWrapper)(torch.empty(128, dtype=torch.uint8))


def plan(made: Any, **changes: Any) -> None:
    offsets = torch.tensor([0, 1], dtype=torch.int32)
    given = {
        "qo_indptr": offsets, "kv_indptr": offsets, "kv_indices": torch.tensor([1]).int(),
        "kv_len_arr": torch.tensor([1]).int(), "num_heads": 1, "head_dim_ckv": 512,
        "head_dim_kpe": 64, "page_size": 1, "causal": False, "sm_scale": 1.0,
        "q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16,
    }  # fmt: skip
    made.plan(**{**given, **changes})


def test_a_dtype_in_the_place_of_a_number_is_refused() -> None:
    with pytest.raises(KernelRefused, match=r"plan: sm_scale must be float; got a dtype"):
        plan(wrapper(), sm_scale=torch.bfloat16, q_data_type=1.0)


def test_a_number_in_the_place_of_a_tensor_is_refused() -> None:
    with pytest.raises(KernelRefused, match="kv_indptr must be Tensor; got a int"):
        plan(wrapper(), kv_indptr=1)


def test_whole_numbers_pass_for_other_numbers_and_flags() -> None:
    plan(wrapper(), sm_scale=1, causal=0)


def test_an_argument_too_few_is_refused() -> None:
    with pytest.raises(KernelRefused, match="flash_attn_with_kvcache: missing a required argument"):
        strict(flash_attn_with_kvcache)()


def test_calls_of_a_package_that_is_stood_in_for_are_held_to_it() -> None:
    package = strict(Stub(decode=Stub(attend=flash_attn_with_kvcache), version="1"))
    assert package.version == "1"
    with pytest.raises(KernelRefused, match="q must be Tensor; got a str"):
        package.decode.attend("q", None, None, cache_seqlens=None, page_table=None)


def test_a_model_has_one_strict_class() -> None:
    assert strict(BatchMLAPagedAttentionWrapper) is strict(BatchMLAPagedAttentionWrapper)


def attend(memory: KernelMemory, *, scale: float, out: torch.Tensor) -> None:
    out.fill_(scale)


def test_a_launch_refuses_what_its_host_code_passed_on_unseen() -> None:
    kernel, out = ModelKernel("attend", attend, "a source"), torch.zeros(1)
    launch(kernel, scale=2, out=out)
    assert out.item() == 2
    with pytest.raises(KernelRefused, match="attend: scale must be float; got a dtype"):
        launch(kernel, scale=torch.bfloat16, out=out)


@pytest.mark.parametrize("changed", ["qo_indptr", "kv_indices", "kv_len_arr"])
def test_a_tensor_of_other_dimensions_than_documented_is_refused(changed: str) -> None:
    table = torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(KernelRefused, match=rf"{changed} must have 1 dimensions; got \[2, 2\]"):
        plan(wrapper(), **{changed: table})


def test_a_tensor_of_one_of_several_numbers_of_dimensions_passes() -> None:
    def model(q: Tensor3Or4, sinks: Tensor1 | None = None) -> None: ...

    check_arguments("model", model, {"q": torch.zeros(1, 1, 1), "sinks": None})
    check_arguments("model", model, {"q": torch.zeros(1, 1, 1, 1), "sinks": torch.zeros(2)})
    with pytest.raises(KernelRefused, match="q must have 3 or 4 dimensions"):
        check_arguments("model", model, {"q": torch.zeros(2)})
    with pytest.raises(KernelRefused, match="sinks must have 1 dimensions"):
        check_arguments("model", model, {"q": torch.zeros(1, 1, 1), "sinks": torch.zeros(())})


@pytest.mark.parametrize("built", [lambda model: model, lambda model: partial(model, eps=1.0)])
def test_a_model_behind_a_compiled_binding_takes_its_kinds_alone(built: Any) -> None:
    model = checks_kinds(built(compress_group_keys), "k_compress")
    matrix = torch.zeros(2, 2, dtype=torch.int32)
    given = (matrix, matrix, matrix, matrix, matrix[0], matrix[0], matrix, matrix, 1, 2)
    with pytest.raises(KernelRefused, match=r"k_compress: write_locs must have 1 dimensions"):
        model(*given, *((1e-6,) if built(model) is model else ()))


def test_what_is_no_model_stays_behind_its_binding() -> None:
    def run() -> None: ...

    assert checks_kinds(run, "run") is run


def test_a_call_that_the_engines_own_function_would_not_take_is_refused() -> None:
    module = types.SimpleNamespace(attend=lambda q, cache: None)
    put_model(module, "attend", lambda q, cache, more=None: q)
    assert module.attend(1, cache=2) == 1
    with pytest.raises(KernelRefused, match="attend: too many positional arguments"):
        module.attend(1, 2, 3)


def test_a_second_stand_in_is_held_to_the_engines_own_function_too() -> None:
    module = types.SimpleNamespace(attend=lambda q: None)
    for _ in range(2):
        put_model(module, "attend", lambda q, more=None: q)
    with pytest.raises(KernelRefused, match="too many positional arguments"):
        module.attend(1, 2)
    assert module.attend(1) == 1
