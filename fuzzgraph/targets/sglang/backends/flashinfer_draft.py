"""`--attention-backend flashinfer` under EAGLE's drafts: `FlashInferMultiStepDraftBackend`.

The release's own draft runner grows drafts on one backend for each step; a Triton kernel of its own
writes the indices of all of them. A draft of one branch attends at each step, with models of
FlashInfer's wrappers, and its outputs are judged; one of several branches computes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.backends.attention_backend import open_backend
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from fuzzgraph.targets.sglang.backends.recording import watched
from fuzzgraph.targets.sglang.decode_session import refused_capture_sizes
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DRAFT, RunnerKind
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftSession, DraftTarget
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import cuda_server
from fuzzgraph.targets.sglang.stubs.workspaces import keep_workspaces_small
from fuzzgraph.world import Batch

_DRAFT = replace(FLASHINFER, places=((FLASHINFER.places[0][0], "FlashInferMultiStepDraftBackend"),))
"""Holds a backend for each step of a draft but the last."""
_STEPS = (
    "sglang generate_draft_decode_kv_indices: for each branch its row's past and the slots that "
    "its steps so far wrote; a padded row lies in the pool's padding row"
)


class FlashInferDraftTarget(DraftTarget):
    """EAGLE's draft runner on FlashInfer."""

    def __init__(self, name: str) -> None:
        super().__init__(name, DRAFT.name)
        self.about = "FlashInfer on each EAGLE draft step"
        self.also_stood_in_for = ("FlashInfer's wrappers, by models", "what samples drafts")
        self.capabilities = self.capabilities.replace(seq_len_fill_values=(1,), min_spec_steps=2)

    def refused(self, config: EngineConfig) -> str | None:
        if config.spec_steps < 2:
            return "spec_steps=1: the last step of a draft has no backend"
        refused = super().refused(config) or refused_capture_sizes(config)
        return refused or FLASHINFER.refuses(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> FlashInferDraftSession:
        return FlashInferDraftSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        layer = "sglang.srt.layers.radix_attention"
        return *super().modules(), _DRAFT.places[0][0], layer

    def load(self) -> None:
        keep_workspaces_small()
        super().load()


class FlashInferDraftSession(DraftSession):
    """One draft runner and its backends, one for each step that attends."""

    attends_on = FLASHINFER

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: RunnerKind) -> None:
        self._read: dict[Hashable, dict[str, torch.Tensor]] = {}
        super().__init__(config, graphs, kind)
        for step in range(len(self.backend.attn_backends)):
            name = f"step{step}_kv"
            self.fields += (
                fields.offsets(f"{name}_indptr", repeats=f"draft_lens:{step}", source=_STEPS),
                fields.slot_indices(f"{name}_indices", source=_STEPS),
            )

    def _open_backend(self, runner: ModelRunner) -> Any:
        # A draft of n steps has n - 1 backends, because the last token needs no forward. Where the
        # model attends at each step, it is that of a server with one step more and room for it.
        more = int(self._model is not None)
        runner.model_config.context_len += more
        steps, topk = self._config.spec_steps + more, self._config.spec_topk
        return open_backend(_DRAFT, runner, watched, topk=topk, speculative_num_steps=steps)

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        """The worker has put the slots of a batch's drafts behind each past."""
        with cuda_server(), contextlib.nullcontext() if batch is None else self._drafted(batch):
            yield

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        assert isinstance(key, int)
        self._read[key] = self._metadata_tensors(key)

    def _wrappers(self, size: int | None) -> list[Any]:
        backends = self.backend.attn_backends
        if size is None:
            return [one.forward_metadata.decode_wrappers[0] for one in backends]
        return [one.decode_cuda_graph_metadata[size][0] for one in backends]

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        return {
            f"step{step}_{name}": wrapper.buffer(f"paged_{name}")
            for step, wrapper in enumerate(self._wrappers(size))
            for name in ("kv_indptr", "kv_indices")
        }

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the kernels of each step read: below the last offset."""
        size = self._size
        held = self._metadata_tensors(None) if size is None else self._read[size]
        used = {name: tensor.clone() for name, tensor in held.items()}
        for step, wrapper in enumerate(self._wrappers(size)):
            name = f"step{step}_kv_indices"
            used[name] = used[name][: used[f"step{step}_kv_indptr"][-1]]
            used[f"step{step}_plan"] = torch.tensor(wrapper.planned["kv_indptr"])
        return used
