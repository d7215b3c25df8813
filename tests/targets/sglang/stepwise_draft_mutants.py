"""EAGLE's drafts on backends that prepare each step as a decode, with one bug; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.stepwise_draft import StepwiseDraftTarget
from tests.targets.sglang.changed_lines import change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

__all__ = [
    "flashmla_pages_of_other_rows",
    "lay_slots_out",
    "nsa_copies_as_another_mode",
    "nsa_mended",
    "nsa_plan_of_the_capture",
    "nsa_second_step_forgotten",
    "nsa_tokens_of_other_rows",
    "trtllm_mla_mended",
    "trtllm_mla_one_key_less",
]

_COPY = "sglang.kernels.ops.attention.dsa.fused_metadata_copy"


def mended(backend: str, change: Callable[[Any], None]) -> StepwiseDraftTarget:
    """A target with changed sessions; reports/findings/sglang-mla-draft-slots.md is mended."""
    target = StepwiseDraftTarget(f"sglang-{backend}-draft", backend)

    def changed(session: Any) -> None:
        lay_slots_out(session)
        change(session)

    return with_changed_sessions(target, changed)


def lay_slots_out(session: Any) -> None:
    """Slots of a step one behind another, for which the store of latent rows takes them."""
    model, attend = session._model, session._model.attend

    def attended(input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        forward_batch.out_cache_loc = forward_batch.out_cache_loc.contiguous()
        return attend(input_ids, positions, forward_batch)

    model.attend = attended


def nsa_mended() -> StepwiseDraftTarget:
    """No planted bug, and the engine's own bug with the slots of a step mended."""
    return mended("nsa", lambda session: None)


def trtllm_mla_mended() -> StepwiseDraftTarget:
    """The same on TensorRT-LLM."""
    return mended("trtllm-mla", lambda session: None)


def nsa_copies_as_another_mode() -> StepwiseDraftTarget:
    """The copy of metadata is compiled for a mode that is no decode's, and without pages."""
    constants = ("forward_mode, has_real_page_table, has_flashmla\n",
                 "has_real_page_table, forward_mode, has_flashmla\n")  # fmt: skip

    def change(session: Any) -> None:
        change_line_elsewhere(session, _COPY, "fused_metadata_copy_cuda", *constants)

    return mended("nsa", change)


def nsa_plan_of_the_capture() -> StepwiseDraftTarget:
    """The plan by which keys are selected stays that of the capture."""

    def change(session: Any) -> None:
        for backend in session.backend.attn_backends:
            backend._refresh_topk_v2_plan = lambda metadata: None

    return mended("nsa", change)


def nsa_second_step_forgotten() -> StepwiseDraftTarget:
    """What is prepared reaches the first step alone."""

    def change(session: Any) -> None:
        second = session.backend.attn_backends[1]
        second.init_forward_metadata_replay_cuda_graph_from_precomputed = lambda **given: None

    return mended("nsa", change)


def _after_copy(session: Any, change: Callable[[Any], None]) -> None:
    for backend in session.backend.attn_backends:
        copy = backend._copy_base_replay_buffers

        def copied(bs: int, metadata: Any, *more: Any, copy: Any = copy) -> None:
            copy(bs, metadata, *more)
            change(metadata)

        backend._copy_base_replay_buffers = copied


def nsa_tokens_of_other_rows() -> StepwiseDraftTarget:
    """Pages of each row are those of the row before it."""

    def change(session: Any) -> None:
        _after_copy(
            session, lambda held: held.real_page_table.copy_(held.real_page_table.roll(1, 0))
        )

    return mended("nsa", change)


def _after_each_step(session: Any, change: Callable[[Any, int], None]) -> None:
    for backend in session.backend.attn_backends:
        prepare = backend.init_forward_metadata_out_graph

        def prepared(
            batch: Any, in_capture: bool = False, *, own: Any = (backend, prepare)
        ) -> None:
            own[1](batch, in_capture=in_capture)
            if not in_capture:
                change(own[0], batch.batch_size)

        backend.init_forward_metadata_out_graph = prepared


def flashmla_pages_of_other_rows() -> StepwiseDraftTarget:
    """FlashMLA's table has each row's pages in the row behind it."""

    def change(session: Any) -> None:
        def shifted(backend: Any, rows: int) -> None:
            table = backend.cuda_graph_kv_indices[:rows]
            table.copy_(table.roll(1, 0))

        _after_each_step(session, shifted)

    return mended("flashmla", change)


def trtllm_mla_one_key_less() -> StepwiseDraftTarget:
    """TensorRT-LLM's lengths count one key too few."""

    def change(session: Any) -> None:
        def shortened(backend: Any, rows: int) -> None:
            backend.decode_cuda_graph_metadata[rows].seq_lens_k.sub_(1).clamp_(min=1)

        _after_each_step(session, shortened)

    return mended("trtllm-mla", change)
