"""In place of FlashInfer's compiled modules: what they refuse, and what is told of a wrong call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.targets.flashinfer import compiled
from tests.targets.flashinfer.modules import (
    COLUMNS,
    PAGE,
    Decode,
    Latent,
    Launch,
    Prefill,
    PrefillSm90,
    decode_module,
    prefill_module,
)

_KINDS = (Decode, Prefill, PrefillSm90, Latent)
_PREFILLS = (Prefill, PrefillSm90)


def planned(kind: type[Launch], **changed: Any) -> Any:
    made = kind()
    made.plan(**changed)
    return made


class TestHealthyCalls:
    @pytest.mark.parametrize("kind", _KINDS)
    @pytest.mark.parametrize("graph", [False, True])
    def test_a_plan_for_what_is_run_says_nothing(self, kind: type[Launch], graph: bool) -> None:
        launch = kind()
        launch.plan(**({"enable_cuda_graph": graph} if "enable_cuda_graph" in launch.given else {}))
        launch.run()
        assert launch.misuses == []
        assert launch.strays == "[]"

    def test_both_prefills_attend_alike(self) -> None:
        torch.manual_seed(1)
        second = planned(Prefill)
        second.run()
        third = planned(PrefillSm90)
        third.run(q=second.q, k=second.cache, v=second.cache)
        torch.testing.assert_close(third.out, second.out)

    @pytest.mark.parametrize("count", [-1, None])
    def test_older_releases_plan_without_a_uniform_length(self, count: int | None) -> None:
        launch = Prefill()
        launch.plan(count=count)
        launch.run()
        assert launch.misuses == []

    def test_what_the_kernel_does_not_read_may_be_anything(self) -> None:
        """Without a mask, pointers of masks; of FlashAttention 3, offsets on the device."""
        second = planned(Prefill, kv_len_arr=torch.zeros(1).int(), causal=False)
        second.run(mask_indptr=torch.ones(1), alibi=torch.ones(1).int())
        third = planned(PrefillSm90)
        third.run(qo_indptr=torch.ones(1), indptr=torch.ones(1), last=torch.ones(1))
        decode = planned(Decode, window_left=5, logits_soft_cap=2.0)
        decode.run()
        assert second.misuses + third.misuses + decode.misuses == []


class TestArgumentsByPosition:
    @pytest.mark.parametrize(
        ("kind", "takes", "got"),
        [(Prefill, "19 to 21 arguments", 16), (Decode, "15 arguments", 12), (Latent, "9", 8)],
    )
    def test_a_plan_of_fewer_arguments_is_refused(
        self, kind: type[Launch], takes: str, got: int
    ) -> None:
        with pytest.raises(KernelRefused, match=f"takes {takes}.*got {got}"):
            kind().plan(count=got - 3)

    def test_a_plan_of_flashattention_3_takes_nothing_of_2(self) -> None:
        launch = PrefillSm90()
        launch.given |= Prefill.behind
        with pytest.raises(KernelRefused, match="takes 16 arguments; got 20"):
            launch.plan()

    @pytest.mark.parametrize(
        ("changed", "told"),
        [
            ({"page_size": None}, "page_size must be a whole number; got None"),
            ({"num_qo_heads": 2.0}, "num_qo_heads must be a whole number"),
            ({"kv_len_arr": None}, "kv_len_arr must be a tensor; got None"),
            ({"enable_cuda_graph": None}, "enable_cuda_graph must be a truth value"),
            ({"batch_size": torch.tensor(2)}, "batch_size must be a whole number; got a tensor"),
        ],
    )
    def test_another_kind_of_argument_is_refused(self, changed: Any, told: str) -> None:
        with pytest.raises(KernelRefused, match=told):
            planned(Prefill, **changed)

    @pytest.mark.parametrize(
        ("kind", "name", "value"),
        [
            (Decode, "q", None), (Prefill, "qo_indptr", None), (Latent, "indices", None),
            (Prefill, "k", torch.ones(2, 2)), (Decode, "q", torch.ones(())),
            (Latent, "ckv", torch.ones(3)), (Prefill, "indices", torch.ones(2, 2).int()),
            (Prefill, "sm_scale", None), (PrefillSm90, "out", torch.ones(1)),
        ],
    )  # fmt: skip
    def test_a_run_ends_in_no_error_of_the_models_own(
        self, kind: type[Launch], name: str, value: Any
    ) -> None:
        with pytest.raises(KernelRefused, match=" must be "):
            planned(kind).run(**{name: value})


class TestWhatAPlanIsFor:
    @pytest.mark.parametrize("kind", [Decode, *_PREFILLS])
    @pytest.mark.parametrize(
        ("sizes", "name"),
        [
            ({"num_qo_heads": 8}, "num_qo_heads"),
            ({"num_kv_heads": 4}, "num_kv_heads"),
            ({"page_size": 4}, "page_size"),
        ],
    )
    def test_other_sizes_than_the_runs_are_told(
        self, kind: type[Launch], sizes: dict[str, int], name: str
    ) -> None:
        launch = planned(kind, **sizes)
        launch.run()
        assert launch.misuses == [name]

    @pytest.mark.parametrize("kind", _PREFILLS)
    def test_other_dims_than_the_modules_are_refused(self, kind: type[Launch]) -> None:
        with pytest.raises(KernelRefused, match="head_dim_vo of a plan must be that of its module"):
            planned(kind, head_dim_vo=COLUMNS // 2)

    def test_other_heads_of_latent_rows_are_told(self) -> None:
        launch = planned(Latent, num_heads=2)
        launch.run()
        assert launch.misuses == ["num_heads"]

    def test_a_causal_plan_of_latent_rows_does_not_cover_what_a_run_sees(self) -> None:
        launch = planned(Latent, causal=True)
        launch.run()
        assert launch.misuses == ["causal"]
        launch.run(mode=1)
        assert launch.misuses == []

    def test_a_window_of_the_run_may_not_reach_beyond_the_plans(self) -> None:
        launch = planned(Prefill, window_left=1)
        launch.run(window_left=1)
        assert launch.misuses == []
        launch.run(window_left=2)
        assert launch.misuses == ["window_left"]

    def test_flashattention_3_follows_the_lengths_of_the_plan(self) -> None:
        launch = planned(PrefillSm90)
        launch.run()
        right = launch.out.clone()
        launch.plan(kv_len_arr=torch.tensor([2, 2]).int())
        launch.run()
        assert not torch.equal(launch.out[0], right[0])
        torch.testing.assert_close(launch.out[1], right[1])

    def test_numbers_of_another_planner_are_refused(self) -> None:
        launch, other = planned(PrefillSm90), planned(Prefill)
        with pytest.raises(KernelRefused, match="plan_info must be the 9 numbers"):
            launch.run(info=other.info)


class TestOffsetsOfAPlan:
    @pytest.mark.parametrize("name", ["qo_indptr", "kv_indptr"])
    @pytest.mark.parametrize("kind", _PREFILLS)
    def test_memory_of_the_device_is_refused(self, kind: type[Launch], name: str) -> None:
        launch: Any = kind()
        with pytest.raises(KernelRefused, match=f"{name} must be memory of the host"):
            launch.plan(**{name: launch.on_device(0, 1, 2)})

    def test_negative_lengths_are_refused(self) -> None:
        with pytest.raises(KernelRefused, match="kv_len_arr must not be negative"):
            planned(PrefillSm90, kv_len_arr=torch.tensor([1, -1]).int())

    def test_rows_that_are_not_of_the_uniform_length_are_refused(self) -> None:
        with pytest.raises(KernelRefused, match="every row must have the 2 queries"):
            planned(Prefill, enable_cuda_graph=True, uniform_q_len=2)
        launch = planned(Prefill, enable_cuda_graph=True, uniform_q_len=1)
        launch.run()
        assert launch.misuses == []

    def test_a_uniform_length_without_a_graph_is_not_read(self) -> None:
        planned(Prefill, uniform_q_len=2)

    @pytest.mark.parametrize("kind", _PREFILLS)
    def test_more_queries_than_total_num_rows_are_refused(self, kind: type[Launch]) -> None:
        with pytest.raises(KernelRefused, match="total_num_rows must be at least the 2 queries"):
            planned(kind, enable_cuda_graph=True, total_num_rows=1)

    def test_a_graphs_later_plan_repeats_the_uniform_length(self) -> None:
        launch = planned(Prefill, enable_cuda_graph=True)
        launch.plan(enable_cuda_graph=True, uniform_q_len=1)
        assert launch.misuses == ["uniform_q_len"]


class TestGraphs:
    @pytest.mark.parametrize("kind", [Decode, *_PREFILLS])
    @pytest.mark.parametrize(("graph", "told"), [(False, ["enable_cuda_graph"]), (True, [])])
    def test_a_launch_follows_another_plan_only_with_a_graph(
        self, kind: type[Launch], graph: bool, told: list[str]
    ) -> None:
        launch: Any = planned(kind, enable_cuda_graph=graph)
        captured = launch.info
        shorter = torch.tensor([0, 1, 1]).int()
        name = "indptr" if kind is Decode else "kv_indptr"
        more = {"kv_len_arr": torch.tensor([1, 0]).int()} if kind is PrefillSm90 else {}
        launch.plan(enable_cuda_graph=graph, **{name: shorter}, **more)
        launch.run(info=captured, indptr=launch.on_device(0, 1, 1))
        assert launch.misuses == told


class TestModules:
    @pytest.mark.parametrize("module", [decode_module, prefill_module])
    def test_positions_that_do_not_exist_are_refused(self, module: Callable[..., Any]) -> None:
        with pytest.raises(KernelRefused, match="pos_encoding_mode must be 0, 1 or 2"):
            module(pos_encoding_mode=COLUMNS)

    @pytest.mark.parametrize("module", [decode_module, prefill_module])
    def test_dims_of_no_columns_are_refused(self, module: Callable[..., Any]) -> None:
        with pytest.raises(KernelRefused, match="head_dim_vo must be a positive number"):
            module(dims=(COLUMNS, 0))

    def test_rotary_positions_say_nothing_about_the_engine(self) -> None:
        with pytest.raises(KernelNotModelled, match="pos_encoding_mode"):
            decode_module(pos_encoding_mode=1)

    def test_queries_of_other_dims_than_the_modules_are_refused(self) -> None:
        launch = planned(Decode)
        launch.module = decode_module((COLUMNS * 2,) * 2)
        with pytest.raises(KernelRefused, match=r"q must be \[any, any, 16\]"):
            launch.run()

    def test_an_output_of_another_width_is_refused(self) -> None:
        with pytest.raises(KernelRefused, match=r"o must be \[2, 4, 8\]"):
            planned(Decode).run(out=torch.empty(2, 4, COLUMNS // 2))

    def test_logarithms_of_another_shape_are_refused(self) -> None:
        with pytest.raises(KernelRefused, match=r"maybe_lse must be \[2, 4\]"):
            planned(Decode).run(lse=torch.empty(2, 2))

    def test_offsets_of_too_few_rows_are_read_beyond_their_end(self) -> None:
        launch: Any = planned(Decode)
        launch.run(indptr=launch.on_device(0, 1))
        assert "paged_kv_indptr" in launch.strays


class TestMasks:
    def _mask(self) -> dict[str, Any]:
        bits = torch.full((2,), 255, dtype=torch.uint8)
        return {"mode": 2, "mask": bits, "mask_indptr": torch.tensor([0, 1, 2]).int()}

    def test_a_kernel_with_a_mask_reads_it(self) -> None:
        launch = planned(Prefill)
        launch.run(**self._mask())
        assert launch.misuses == []

    @pytest.mark.parametrize("name", ["mask", "mask_indptr"])
    def test_without_a_tensor_it_is_refused(self, name: str) -> None:
        with pytest.raises(KernelRefused, match="must be a tensor for a kernel that reads it"):
            planned(Prefill).run(**self._mask() | {name: None})

    def test_offsets_that_are_no_whole_numbers_are_refused(self) -> None:
        with pytest.raises(KernelRefused, match="maybe_mask_indptr must be int32; got float32"):
            planned(Prefill).run(**self._mask() | {"mask_indptr": torch.ones(3)})

    def test_offsets_of_too_few_rows_are_read_beyond_their_end(self) -> None:
        launch: Any = planned(Prefill)
        launch.run(**self._mask() | {"mask_indptr": launch.on_device(0)})
        assert "mask_indptr" in launch.strays

    def test_flashattention_3_follows_none(self) -> None:
        with pytest.raises(KernelRefused, match="FlashAttention 3 follows no mask"):
            planned(PrefillSm90).run(mode=2)

    def test_a_mode_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(KernelRefused, match="mask_mode_code must be 0, 1, 2 or 3"):
            planned(Prefill).run(mode=7)


class TestTrtllmGen:
    def _call(self, **changed: Any) -> None:
        q = torch.ones(2, 2, COLUMNS)
        cache = torch.ones(4, 2, PAGE, COLUMNS)
        given: dict[str, Any] = {
            "out": torch.empty_like(q), "fp4": None, "query": q, "k": cache, "v": cache,
            "workspace": torch.zeros(4096, dtype=torch.uint8),
            "counters": torch.zeros(4096, dtype=torch.uint8),
            "block_tables": torch.tensor([[1], [2]]).int(),
            "seq_lens": torch.tensor([1, 2]).int(), "max_q_len": 1, "max_kv_len": 2,
            "bmm1": 1.0, "bmm2": 1.0, "sf_scale": -1, "sf_size": -1, "sf_start": 0,
            "batch_size": 2, "window_left": -1, "top_k": 0, "sm_count": 4, "pdl": False,
            "workspace_size": 4096, "sinks": None, "cum_seq_lens_q": None,
        }  # fmt: skip
        compiled._TrtllmGen().trtllm_paged_attention_decode(*(given | changed).values())

    def test_a_right_call_is_taken(self) -> None:
        self._call()

    def test_a_size_beyond_the_workspace_is_refused(self) -> None:
        with pytest.raises(KernelRefused, match="workspace_size must not be above the 4096 bytes"):
            self._call(workspace_size=8192)

    def test_other_tokens_than_rows_have_are_refused(self) -> None:
        with pytest.raises(KernelRefused, match="query must hold batch_size"):
            self._call(batch_size=3)

    @pytest.mark.parametrize("name", ["query", "block_tables", "seq_lens"])
    def test_what_is_no_tensor_is_refused(self, name: str) -> None:
        with pytest.raises(KernelRefused, match=f"{name} must be a tensor; got None"):
            self._call(**{name: None})

    def test_keys_without_dimensions_are_refused(self) -> None:
        with pytest.raises(KernelRefused, match="k_cache must be"):
            self._call(k=torch.ones(()))
