"""EAGLE's drafts on a backend for each step, whose indices of all steps one Triton kernel writes.

The release's own draft runner grows drafts on them. A draft of one branch attends at each step, and
so does one of several on pages of one token; outputs are judged then. On other pages one of several
branches computes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import NotInRelease
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    open_backend,
)
from fuzzgraph.targets.sglang.backends.recording import watched
from fuzzgraph.targets.sglang.decode_session import refused_capture_sizes
from fuzzgraph.targets.sglang.release import engine_module, release
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DRAFT
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftSession, DraftTarget
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_SPECULATION = "sglang.srt.speculative.spec_utils"
_WINDOWS = "resolve_draft_decode_window"
"""Gives the window and sink of a server's arguments (0.5.21)."""
_STEPS = (
    "sglang generate_draft_decode_kv_indices: for each branch what it sees of its row's past, and "
    "the slots that its steps so far wrote; a padded row lies in the pool's padding row"
)


def drafts_on(decodes: Capabilities, own: Capabilities) -> Capabilities:
    """Of drafts of one branch whose steps have the dimensions that decodes of a backend have.

    Args:
        decodes: of the backend's target of decodes.
        own: of the draft runner.
    """
    return decodes.replace(
        modes=own.modes,
        max_spec_steps=own.max_spec_steps,
        usual_spec_steps=own.usual_spec_steps,
        max_spec_topk=1,
        max_draft_tokens=own.max_draft_tokens,
        seq_len_fill_values=own.seq_len_fill_values,
        row_mixings=own.row_mixings,
        max_tp_size=own.max_tp_size,
        max_dp_size=own.max_dp_size,
        idle_alone=own.idle_alone,
        kv_dtypes=own.kv_dtypes,
        dtypes=own.dtypes,
        two_batch_overlap=False,
        later_stages=False,
        virtual_pages=False,
        swa_window=False,
    )


class MultiStepDraftTarget(DraftTarget):
    """EAGLE's draft runner on one backend of attention.

    Args:
        name: of the target.
        backend: of a single step.
    """

    judged = "one branch, or pages of one token"
    """In which cases its outputs are."""

    def __init__(self, name: str, backend: AttentionBackend) -> None:
        super().__init__(name, DRAFT.name)
        self.outputs_judged = {DRAFT.mode: self.judged}
        self._backend = backend
        self.capabilities = self.capabilities.replace(
            seq_len_fill_values=(1,),
            usual_spec_steps=2,
            draft_windows=True,
            swa_window=False,
            draft_branches=("apart", "chosen"),
        )

    def refused(self, config: EngineConfig) -> str | None:
        refused = super().refused(config) or refused_capture_sizes(config)
        return refused or self._backend.refused(config)

    def modules(self) -> tuple[str, ...]:
        return *super().modules(), self._backend.place()[0], "sglang.srt.layers.radix_attention"


class MultiStepDraftSession(DraftSession):
    """One draft runner and its backends, one for each step that attends."""

    of_all_steps: str
    """The engine's class that holds a backend for each step of a draft but the last."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        if config.draft_window_size and not hasattr(engine_module(_SPECULATION), _WINDOWS):
            raise NotInRelease(
                f"sglang {release()} does not bound what drafts of EAGLE see: draft_window_size "
                "must be 0"
            )
        super().__init__(config, graphs, DRAFT)
        for step in range(len(self._attending)):
            self.fields += self.fields_of_step(f"step{step}", step)

    @property
    def _attending(self) -> Sequence[Any]:
        """The backends of steps that attend; some classes hold one more (`sglang-dsv4-draft`)."""
        held: Sequence[Any] = self.backend.attn_backends
        return held[: self._config.spec_steps]

    def fields_of_step(self, name: str, step: int) -> tuple[Field, ...]:
        """What the kernels of one step read."""
        return (
            fields.offsets(f"{name}_kv_indptr", repeats=f"draft_lens:{step}", source=_STEPS),
            fields.slot_indices(f"{name}_kv_indices", source=_STEPS),
        )

    def _server_arguments(self, config: EngineConfig) -> dict[str, Any]:
        of_backend = {**dict(self.attends_on.arguments), **self.attends_on.chosen(config)}
        given = {**of_backend, **super()._server_arguments(config)}
        if not config.draft_window_size:
            return given
        return {
            **given,
            "speculative_draft_window_size": config.draft_window_size,
            "speculative_draft_sink_size": config.draft_sink_size,
        }

    def _open_backend(self, runner: ModelRunner) -> Any:
        # A draft of n steps has n - 1 backends, because the last token needs no forward. Where the
        # model attends at each step, it is that of a server with one step more and room for it.
        more = int(self._model is not None)
        runner.model_config.context_len += more
        steps, topk = self._config.spec_steps + more, self._config.spec_topk
        place = (self.attends_on.place()[0], self.of_all_steps)
        held = replace(self.attends_on, places=(place,))
        return open_backend(held, runner, watched, topk=topk, speculative_num_steps=steps)

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        """The worker has put the slots of a batch's drafts behind each past."""
        with (
            self.attends_on.server(self._config),
            contextlib.nullcontext() if batch is None else self._drafted(batch),
        ):
            yield

    def _read_by(self, size: int | None) -> dict[str, torch.Tensor]:
        """What the kernels of each step read, in a graph or in the last eager run."""
        return self._metadata_tensors(size)

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """The same below the last offset."""
        used = {name: tensor.clone() for name, tensor in self._read_by(self._size).items()}
        branches = len(lens) * self._config.spec_topk
        for step in range(len(self._attending)):
            bounds, listed = f"step{step}_kv_indptr", f"step{step}_kv_indices"
            used[bounds] = used[bounds][: branches + 1]
            used[listed] = used[listed][: used[bounds][-1]]
        return used
