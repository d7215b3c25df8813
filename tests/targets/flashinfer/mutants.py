"""FlashInfer's wrappers with one line changed; opened by name in a worker."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from fuzzgraph.case import Mode
from fuzzgraph.targets.flashinfer.release import FLASHINFER
from fuzzgraph.targets.flashinfer.target import WrapperTarget
from fuzzgraph.targets.flashinfer.wrappers import KINDS, Kind

__all__ = [
    "arguments_of_the_other_planner",
    "heads_swapped",
    "lengths_of_queries",
    "mask_offsets_swapped",
    "module_of_other_dims",
    "offsets_of_the_device",
    "plan_without_a_graph",
    "key_scale_left_out",
    "last_page_not_copied",
    "mask_offsets_not_copied",
    "offsets_rebound",
    "plan_of_fewer_queries",
    "trtllm_gen_mended",
    "workspace_anew",
]


_COUNTERS = "_trtllm_gen_multi_ctas_kv_counter_buffer"


def _with_plan(kind: str, mode: Mode, around: Any) -> WrapperTarget:
    """A target whose wrappers plan as `around(plan, wrapper, args, kwargs)` says."""
    base = type(KINDS[kind])

    class Changed(base):  # type: ignore[valid-type, misc]
        def load(self) -> Any:
            wrapper_class = super().load()

            class Wrapper(wrapper_class):  # type: ignore[valid-type, misc]
                def plan(self, *args: Any, **kwargs: Any) -> None:
                    around(super().plan, self, args, kwargs)

            return Wrapper

    return _target(Changed(), mode)


def _target(kind: Kind, mode: Mode) -> WrapperTarget:
    latent = kind.attention == "mla"
    several = "prefill" if kind.module == "flashinfer.prefill" else "decode"
    target = WrapperTarget("flashinfer-mutant", "mla" if latent else several, mode)
    target._kind = kind
    return target


def _with_module(
    planned: Callable[[Any, list[Any]], list[Any]] = lambda _, args: args,
    ran: Callable[[list[Any]], list[Any]] = lambda args: args,
    built: Callable[[list[Any]], list[Any]] = lambda args: args,
) -> WrapperTarget:
    """A prefill that hands its module other arguments.

    Args:
        planned: changes those of a plan, of which it takes the wrapper and all; ran: of a run.
        built: changes what the module is built for.
    """

    def around(plan: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        module: Any = FLASHINFER.module("flashinfer.prefill")
        real = module.get_batch_prefill_module

        def changed(backend: str, *given: Any) -> Any:
            made = real(backend, *built(list(given)))
            return SimpleNamespace(
                **vars(made) | {
                    "plan": lambda *them: made.plan(*planned(wrapper, list(them))),
                    "paged_run": lambda *them: made.paged_run(*ran(list(them))),
                }
            )  # fmt: skip

        module.get_batch_prefill_module = changed
        try:
            plan(*args, **kwargs)
        finally:
            module.get_batch_prefill_module = real

    return _with_plan("prefill", "target_verify", around)


def lengths_of_queries() -> WrapperTarget:
    """A plan takes offsets of queries for the lengths of keys."""
    return _with_module(lambda _, args: [*args[:5], args[3], *args[6:]])


def offsets_of_the_device() -> WrapperTarget:
    """A plan takes the graph's buffer for the host's copy of it."""
    return _with_module(lambda wrapper, args: [*args[:3], wrapper._qo_indptr_buf, *args[4:]])


def arguments_of_the_other_planner() -> WrapperTarget:
    """FlashAttention 3 plans with what 2 takes beyond."""
    return _with_module(lambda _, args: [*args, -1, False, 0, 0])


def plan_without_a_graph() -> WrapperTarget:
    """A plan is told that no graph follows it."""
    return _with_module(lambda _, args: [*args[:11], False, *args[12:]])


def module_of_other_dims() -> WrapperTarget:
    """A module is built of twice the columns of values."""
    return _with_module(built=lambda args: [*args[:5], args[5] * 2, *args[6:]])


def mask_offsets_swapped() -> WrapperTarget:
    """A run takes the slopes of ALiBi for the offsets of masks, and the other way round."""
    return _with_module(ran=lambda args: [*args[:17], args[18], args[17], *args[19:]])


def _kept(name: str) -> Any:
    """A plan that leaves one of a graph's buffers as it was."""

    def plan(plan: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        buffer = getattr(wrapper, name)
        before = buffer.clone() if wrapper.is_cuda_graph_enabled and buffer is not None else None
        plan(*args, **kwargs)
        if before is not None:
            buffer.copy_(before)

    return plan


def last_page_not_copied() -> WrapperTarget:
    return _with_plan("decode", "decode", _kept("_paged_kv_last_page_len_buf"))


def mask_offsets_not_copied() -> WrapperTarget:
    return _with_plan("prefill", "target_verify", _kept("_mask_indptr_buf"))


def offsets_rebound() -> WrapperTarget:
    """A plan keeps its own copy of the offsets in place of the graph's buffer."""

    def plan(plan: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        plan(*args, **kwargs)
        wrapper._paged_kv_indptr_buf = wrapper._paged_kv_indptr_buf.clone()

    return _with_plan("decode", "decode", plan)


def heads_swapped() -> WrapperTarget:
    """A plan takes the heads of queries for those of keys, and the other way round."""

    def plan(plan: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        *lists, q_heads, kv_heads, dim, size = args
        plan(*lists, kv_heads, q_heads, dim, size, **kwargs)

    return _with_plan("decode", "decode", plan)


def plan_of_fewer_queries() -> WrapperTarget:
    """A graph's later plans forget how many queries it was captured with."""

    def plan(plan: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        wrapper._max_total_num_rows = None
        plan(*args, **kwargs)

    return _with_plan("prefill", "target_verify", plan)


def workspace_anew() -> WrapperTarget:
    """Each plan of latent attention is written to a workspace of its own."""

    def plan(plan: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        wrapper._planned_backend = None  # whose workspace the next plan takes over
        plan(*args, **kwargs)

    return _with_plan("mla", "decode", plan)


def key_scale_left_out() -> WrapperTarget:
    """A run that does not scale FP8 keys."""

    class Unscaled(type(KINDS["decode"])):  # type: ignore[misc]
        def load(self) -> Any:
            wrapper_class = super().load()

            class Wrapper(wrapper_class):  # type: ignore[valid-type, misc]
                def run(self, *args: Any, k_scale: Any = None, **kwargs: Any) -> Any:
                    return super().run(*args, **kwargs)

            return Wrapper

    return _target(Unscaled(), "decode")


def trtllm_gen_mended() -> WrapperTarget:
    """A graph's plans keep the page table and the counters of the first one: no bug is left."""

    tables: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def plan(plan: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        if not wrapper.is_cuda_graph_enabled:
            plan(*args, **kwargs)
            return
        offsets, indices = args[0].tolist(), args[1]
        if wrapper not in tables:
            rows, room = len(offsets) - 1, wrapper._paged_kv_indices_buf
            tables[wrapper] = room.new_zeros(rows, len(room) // rows)
        kept = tables[wrapper]
        kept.zero_()
        for row, (low, high) in enumerate(zip(offsets, offsets[1:], strict=False)):
            kept[row, : high - low] = indices[low:high]
        counters = getattr(wrapper, _COUNTERS)
        plan(*args, block_tables=kept, **kwargs)
        if counters is not None:
            setattr(wrapper, _COUNTERS, counters)

    return _with_plan("decode_trtllm_gen", "decode", plan)
