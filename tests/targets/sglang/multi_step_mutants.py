"""EAGLE's drafts on AITER and on FlashInfer's latent attention, with one line changed; opened by
name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends.aiter_draft import AiterDraftTarget
from fuzzgraph.targets.sglang.backends.flashinfer_mla_draft import FlashInferMlaDraftTarget
from tests.targets.sglang.changed_kernels import change_own_kernel
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions
from tests.targets.sglang.stepwise_draft_mutants import lay_slots_out

_LISTS = "generate_draft_decode_kv_indices"
_OFFSETS = "self.kv_indptr[i, : bs + 1]"
_CUT = "draft_kv_indices_used_len(seq_lens_sum, self.topk, bs, i + 1)"


class _AnyBranches(AiterDraftTarget):
    """Runs several branches on kernels whose metadata count one for each request."""

    def refused(self, config: EngineConfig) -> str | None:
        return None


def aiter_any_branches() -> AiterDraftTarget:
    """No planted bug."""
    return _AnyBranches("sglang-aiter-draft")


def _aiter(change: Callable[[Any], None]) -> AiterDraftTarget:
    return with_changed_sessions(AiterDraftTarget("sglang-aiter-draft"), change)


def _of_all_steps(line: str, other: str) -> Callable[[Any], None]:
    return lambda session: change_line(session.backend, "common_template", line, other)


def aiter_offsets_of_the_next_step() -> AiterDraftTarget:
    """A step reads its list by offsets of the one behind it."""
    return _aiter(_of_all_steps(_OFFSETS, _OFFSETS.replace("[i,", "[i + 1,")))


def aiter_list_of_the_first_step() -> AiterDraftTarget:
    """All steps read the list of the first one."""
    return _aiter(_of_all_steps("kv_indices_buffer[i][", "kv_indices_buffer[0]["))


def aiter_list_cut_short() -> AiterDraftTarget:
    """Without a graph a step gets a list without the last tokens of its rows."""
    return _aiter(_of_all_steps(_CUT, _CUT.replace("i + 1", "i")))


def aiter_lists_without_room_for_drafts() -> AiterDraftTarget:
    """The kernel that lists what a step sees lays rows out as if each had one draft."""

    def change(session: Any) -> None:
        line = "bid * iters * topk"
        change_own_kernel(session.backend, _LISTS, line, "bid * topk")

    return _aiter(change)


def aiter_last_row_without_pages() -> AiterDraftTarget:
    """The table of unified attention is made for all rows but the last, which keeps older pages."""

    def change(session: Any) -> None:
        for backend in session.backend.attn_backends:
            line = "grid = (bs, "
            change_line(backend, "_build_unified_page_table_from_spec", line, "grid = (bs - 1, ")

    return _aiter(change)


def _flashinfer_mla(change: Callable[[Any], None]) -> FlashInferMlaDraftTarget:
    """A target with changed sessions, in which each step is prepared as a decode of its own
    (reports/findings/sglang-flashinfer-mla-draft-plan.md) and rows are stored where they should be
    (reports/findings/sglang-mla-draft-slots.md)."""

    def changed(session: Any) -> None:
        lay_slots_out(session)
        for backend in session.backend.attn_backends:
            line = "if spec_info is None:"
            change_line(backend.indices_updater_decode, "call_begin_forward", line, "if True:")
        change(session)

    return with_changed_sessions(FlashInferMlaDraftTarget("sglang-flashinfer-mla-draft"), changed)


def flashinfer_mla_mended() -> FlashInferMlaDraftTarget:
    """No planted bug, and the engine's own ones mended."""
    return _flashinfer_mla(lambda session: None)


def _planned(line: str, other: str) -> FlashInferMlaDraftTarget:
    def change(session: Any) -> None:
        for backend in session.backend.attn_backends:
            change_line(backend, "_apply_cuda_graph_metadata", line, other)

    return _flashinfer_mla(change)


def flashinfer_mla_offsets_of_the_next_row() -> FlashInferMlaDraftTarget:
    """Rows are planned by offsets of the rows behind them."""
    line = '"kv_indptr_cpu": self.cuda_graph_kv_indptr_cpu[: bs + 1]'
    return _planned(line, line.replace("[: bs + 1]", "[1 : bs + 2]"))


def flashinfer_mla_one_key_less() -> FlashInferMlaDraftTarget:
    """Rows are planned with one key too few."""
    line = '"kv_len_arr_cpu": kv_len_arr_cpu,'
    return _planned(line, line.replace("cpu,", "cpu - 1,"))


def flashinfer_mla_second_step_forgotten() -> FlashInferMlaDraftTarget:
    """A replay prepares the first step alone."""

    def change(session: Any) -> None:
        prepare = session.backend.attn_backends[1].init_forward_metadata_out_graph

        def prepared(batch: Any, in_capture: bool = False) -> None:
            if in_capture:
                prepare(batch, in_capture=True)

        session.backend.attn_backends[1].init_forward_metadata_out_graph = prepared

    return _flashinfer_mla(change)


def flashinfer_mla_lists_from_the_second_token() -> FlashInferMlaDraftTarget:
    """The kernel that lists what steps see leaves out each row's first token."""

    def change(session: Any) -> None:
        lay_slots_out(session)
        line = "tl.load(req_pool_indices + bid) * row_stride"
        change_own_kernel(session.backend, _LISTS, line, f"{line} + 1")

    return with_changed_sessions(FlashInferMlaDraftTarget("sglang-flashinfer-mla-draft"), change)
