"""EAGLE's drafts behind a window, on Triton and FlashInfer, with one bug in what they see.

Opened by name. Each is the released multi-step backend of which one number or list is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.flashinfer_draft import FlashInferDraftTarget
from fuzzgraph.targets.sglang.backends.multi_step_draft import MultiStepDraftTarget
from fuzzgraph.targets.sglang.backends.triton_draft import TritonDraftTarget
from tests.targets.sglang.planted import with_changed_sessions

_TARGETS = {"triton": TritonDraftTarget, "flashinfer": FlashInferDraftTarget}


def _planted(backend: str, change: Callable[[Any], None]) -> MultiStepDraftTarget:
    target = _TARGETS[backend](f"sglang-{backend}-draft")
    return with_changed_sessions(target, lambda session: change(session.backend))


def _sink_forgotten(backend: Any) -> None:
    backend.draft_sink_size = 0


def _one_token_more(backend: Any) -> None:
    backend.draft_window_size += bool(backend.draft_window_size)


def _window_forgotten(backend: Any) -> None:
    backend.draft_window_size = backend.draft_sink_size = 0


def _oldest_tokens(backend: Any) -> None:
    """The first row lists its oldest tokens in place of the newest ones."""
    fill = backend.common_template

    def filled(batch: Any, indices: Any, call: Any, **more: Any) -> None:
        written = backend.cuda_graph_kv_indices if indices is None else indices

        def overwrite(*step: Any) -> None:
            seen = backend.draft_window_size + backend.draft_sink_size
            count = min(int(batch.seq_lens[0]), seen)
            table = backend.req_to_token_pool.req_to_token
            written[:, :count] = table[int(batch.req_pool_indices[0]), :count]
            if step:
                call(*step)

        fill(batch, indices, call and overwrite, **more)
        if call is None:
            overwrite()

    backend.common_template = filled


def triton_sink_forgotten() -> MultiStepDraftTarget:
    return _planted("triton", _sink_forgotten)


def triton_one_token_more() -> MultiStepDraftTarget:
    return _planted("triton", _one_token_more)


def triton_window_forgotten() -> MultiStepDraftTarget:
    return _planted("triton", _window_forgotten)


def triton_oldest_tokens() -> MultiStepDraftTarget:
    return _planted("triton", _oldest_tokens)


def flashinfer_sink_forgotten() -> MultiStepDraftTarget:
    return _planted("flashinfer", _sink_forgotten)


def flashinfer_one_token_more() -> MultiStepDraftTarget:
    return _planted("flashinfer", _one_token_more)


def flashinfer_window_forgotten() -> MultiStepDraftTarget:
    return _planted("flashinfer", _window_forgotten)


def flashinfer_oldest_tokens() -> MultiStepDraftTarget:
    return _planted("flashinfer", _oldest_tokens)
