"""Drafts of servers with `--speculative-num-steps 2`, which have a backend of one step; one line is
changed. Opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.flashinfer_draft import FlashInferDraftTarget
from fuzzgraph.targets.sglang.backends.multi_step_draft import MultiStepDraftTarget
from fuzzgraph.targets.sglang.backends.stepwise_draft import StepwiseDraftTarget
from fuzzgraph.targets.sglang.backends.triton_draft import TritonDraftTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions

_TRITON = "sglang.srt.layers.attention.triton_backend"
_OF_ALL_STEPS = "for i in range(self.speculative_num_steps - 1):"


def _triton(change: Callable[[Any], None]) -> MultiStepDraftTarget:
    return with_changed_sessions(TritonDraftTarget("sglang-triton-draft"), change)


def triton_step_forgotten() -> MultiStepDraftTarget:
    """The backend of the only step that attends is not prepared."""

    def change(session: Any) -> None:
        none = _OF_ALL_STEPS.replace("- 1", "- 2")
        change_line(session.backend, "common_template", _OF_ALL_STEPS, none)

    return _triton(change)


def triton_offsets_of_the_next_step() -> MultiStepDraftTarget:
    """The step reads offsets of the one behind it, which has no backend."""

    def change(session: Any) -> None:
        line = "self.kv_indptr[i, : bs + 1]"
        change_line(session.backend, "common_template", line, line.replace("[i,", "[i + 1,"))

    return _triton(change)


def triton_step_without_its_own_token() -> MultiStepDraftTarget:
    """The kernel that lists what a step sees leaves out the step's own token."""

    def change(session: Any) -> None:
        line = "    iters += 1\n"
        change_kernel(session, _TRITON, "generate_draft_decode_kv_indices", line, "")

    return _triton(change)


def flashinfer_offsets_of_the_next_step() -> MultiStepDraftTarget:
    """The same on FlashInfer."""

    def change(session: Any) -> None:
        line = "self.kv_indptr[i, : bs + 1]"
        change_line(session.backend, "common_template", line, line.replace("[i,", "[i + 1,"))

    return with_changed_sessions(FlashInferDraftTarget("sglang-flashinfer-draft"), change)


def nsa_single_step_forgotten() -> MultiStepDraftTarget:
    """What is prepared is copied to no step."""

    def change(session: Any) -> None:
        (only,) = session.backend.attn_backends
        only.init_forward_metadata_replay_cuda_graph_from_precomputed = lambda **given: None

    return with_changed_sessions(StepwiseDraftTarget("sglang-nsa-draft", "nsa"), change)
