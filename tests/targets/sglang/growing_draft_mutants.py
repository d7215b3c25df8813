"""EAGLE's drafts on a backend for each step whose lengths grow with them; one line is changed.
Opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.stepwise_draft import StepwiseDraftTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions
from tests.targets.sglang.stepwise_draft_mutants import mended

__all__ = [
    "backend_of_the_first_step",
    "fa3_mla_length_without_the_step",
    "fa3_mla_mended",
    "fa3_mla_pages_of_other_rows",
    "last_page_of_a_row_stale",
    "last_step_forgotten",
    "length_without_the_step",
    "lengths_of_padded_rows_stale",
]

_WORKER = "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker"
_RUNNER = "sglang.srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner"
_METADATA = "sglang.kernels.ops.attention.trtllm_mha_graph_metadata"


def _trtllm_mha(change: Callable[[Any], None]) -> StepwiseDraftTarget:
    return with_changed_sessions(
        StepwiseDraftTarget("sglang-trtllm-mha-draft", "trtllm-mha"), change
    )


def length_without_the_step() -> StepwiseDraftTarget:
    """A graph's steps all see as many keys as the first one."""

    def change(session: Any) -> None:
        line = "seqlen_offset = self.speculative_step_id + 1"
        for backend in session.backend.attn_backends:
            change_line(backend, "_apply_cuda_graph_metadata", line, "seqlen_offset = 1")

    return _trtllm_mha(change)


def last_step_forgotten() -> StepwiseDraftTarget:
    """What a graph prepares reaches all steps but the last that attends."""

    def change(session: Any) -> None:
        line = "for i in range(self.speculative_num_steps - 1):"
        fewer = line.replace("- 1", "- 2")
        change_line(session.backend, "init_forward_metadata_in_graph", line, fewer)

    return _trtllm_mha(change)


def backend_of_the_first_step() -> StepwiseDraftTarget:
    """The worker's loop attends by the first step's backend at every step."""

    def change(session: Any) -> None:
        line = "self.draft_attn_backend.attn_backends[i]"
        first = line.replace("[i]", "[0]")
        change_line_elsewhere(session, _WORKER, "draft_forward", line, first)

    return _trtllm_mha(change)


def last_page_of_a_row_stale() -> StepwiseDraftTarget:
    """The kernel that writes a table of pages leaves out a page that has one key so far."""

    def change(session: Any) -> None:
        name, line = "update_trtllm_mha_graph_metadata_kernel", "tl.cdiv(seqlen, PAGE_SIZE)"
        change_kernel(session, _METADATA, name, line, line.replace("seqlen", "seqlen - 1"))

    return _trtllm_mha(change)


def lengths_of_padded_rows_stale() -> StepwiseDraftTarget:
    """Padded rows keep the lengths of an earlier batch."""

    def change(session: Any) -> None:
        line = "buffers.seq_lens.fill_(self.seq_len_fill_value)"
        change_line_elsewhere(session, _RUNNER, "execute", line, "pass")

    return _trtllm_mha(change)


def fa3_mla_mended() -> StepwiseDraftTarget:
    """FlashAttention 3 over latent rows without a planted bug, and with the engine's own mended."""
    return mended("fa3-mla", lambda session: None)


def fa3_mla_length_without_the_step() -> StepwiseDraftTarget:
    """A graph's steps on FlashAttention 3 all see as many keys as the first one."""

    def change(session: Any) -> None:
        for backend in session.backend.attn_backends:
            line = "return self.speculative_step_id + 1"
            change_line(backend, "_spec_read_seq_len_delta", line, "return 1")

    return mended("fa3-mla", change)


def fa3_mla_pages_of_other_rows() -> StepwiseDraftTarget:
    """A graph's table of pages on FlashAttention 3 has each row's pages in the row behind it."""

    def change(session: Any) -> None:
        line = "        req_pool_indices,\n        self.max_num_pages,"
        rolled = line.replace("indices,", "indices.roll(1),")
        for backend in session.backend.attn_backends:
            change_line(backend, "_set_decode_page_metadata", line, rolled)

    return mended("fa3-mla", change)
