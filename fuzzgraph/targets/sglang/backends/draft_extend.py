"""EAGLE's draft-extend on one attention backend each: targets such as `sglang-triton-draft-extend`.

Real: `EAGLEDraftExtendCudaGraphRunner` and its input buffers, the backend with both preparations
and its forward, one `RadixAttention` layer, `LogitsProcessor`. Stood in for is what the backend's
own file says. On FlashAttention 3 the target is `sglang-eagle-draft-extend`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends import (
    aiter,
    fa3,
    flashinfer,
    flashmla,
    nsa,
    triton,
    trtllm_mha,
    trtllm_mla,
)
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend
from fuzzgraph.targets.sglang.decode_session import refused_capture_sizes
from fuzzgraph.targets.sglang.excuses.drafts import DRAFT_EXTEND_EXCUSES
from fuzzgraph.targets.sglang.release import demand_release
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DRAFT_EXTEND, RunnerKind
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftSession, DraftTarget
from fuzzgraph.targets.sglang.stubs.workspaces import keep_workspaces_small
from fuzzgraph.world import Batch

_BACKENDS = {
    "aiter": aiter.AITER,
    "fa3-mla": fa3.FA3_MLA,
    "flashinfer": flashinfer.FLASHINFER,
    "flashmla": flashmla.FLASHMLA,
    "nsa": nsa.NSA,
    "triton": triton.TRITON,
    "trtllm-mha": trtllm_mha.TRTLLM_MHA,
    "trtllm-mla": trtllm_mla.TRTLLM_MLA,
}
_LATER = {"flashinfer": (0, 5, 19), "flashmla": (0, 5, 19), "nsa": (0, 5, 15)}
_FROM = (0, 5, 13)
"""The first release whose only worker gives rows all their places (sglang eagle_worker_v2.py), and
those of backends that prepare such rows since a later one."""


class DraftExtendTarget(DraftTarget):
    """EAGLE's draft-extend runner on one backend of the release that this process holds."""

    excuses = DRAFT_EXTEND_EXCUSES
    kind = DRAFT_EXTEND
    backends: Mapping[str, AttentionBackend] = MappingProxyType(_BACKENDS)
    later: Mapping[str, tuple[int, int, int]] = MappingProxyType(_LATER)
    """Name of a backend -> the first release that prepares such graphs on it; others do from
    `first` on."""
    first = _FROM

    def __init__(self, name: str, backend: str) -> None:
        super().__init__(name, self.kind.name)
        self.backend = self.backends[backend]
        decodes = self.backend.target(name, "decode")
        self.any_page_size = decodes.any_page_size
        self.about = f"{self.backend.name}{self.backend.part}, EAGLE's draft_extend graphs"
        self.also_stood_in_for = self.backend.stood_in_for
        own = self.capabilities
        self.capabilities = decodes.capabilities.replace(
            modes=own.modes,
            max_spec_steps=own.max_spec_steps,
            max_spec_topk=own.max_spec_topk,
            max_draft_tokens=own.max_draft_tokens,
            seq_len_fill_values=own.seq_len_fill_values,
            row_mixings=own.row_mixings,
            max_tp_size=own.max_tp_size,
            max_dp_size=own.max_dp_size,
            idle_alone=own.idle_alone,
            state_tracking=own.state_tracking,
            two_batch_overlap=False,
            backends_beside=("none",),
            trtllm_kernels=("trtllm_gen",),
            logit_caps=(0,),
            # Without a graph FlashInfer attends to the new tokens as they are, not as FP8 has them.
            kv_dtypes=own.kv_dtypes,
            # Drafts would live in the pages of the model that they are checked by.
            virtual_pages=False,
        )

    @property
    def device_capabilities(self) -> Capabilities:
        return super().device_capabilities.replace(**dict(self.backend.on_device))

    def refused(self, config: EngineConfig) -> str | None:
        refused = super().refused(config) or refused_capture_sizes(config)
        return refused or self.backend.refused(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DraftExtendSession:
        return DraftExtendSession(config, graphs, self._kind, self.backend)

    def modules(self) -> tuple[str, ...]:
        layer = "sglang.srt.layers.radix_attention"
        first = self.later.get(self.backend.name, self.first)
        lack = f"prepares no graphs of draft-extend on {self.backend.name}"
        demand_release(first, lack, self.name)
        return *super().modules(), self.backend.place()[0], layer

    def load(self) -> None:
        keep_workspaces_small()
        super().load()


class DraftExtendSession(DraftSession):
    """One draft-extend runner and the backend that attends."""

    def __init__(
        self,
        config: EngineConfig,
        graphs: GraphEngine,
        kind: RunnerKind,
        backend: AttentionBackend,
    ) -> None:
        self.attends_on = backend
        super().__init__(config, graphs, kind)

    def _fill(self, config: EngineConfig) -> int:
        return self.attends_on.fill(config)

    def _server_arguments(self, config: EngineConfig) -> dict[str, Any]:
        return {**dict(self.attends_on.arguments), **self.attends_on.chosen(config)}

    def plan(self) -> dict[str, object]:
        """FlashInfer without a graph attends in two parts (sglang flashinfer_backend.py)."""
        held = getattr(self.backend, "forward_metadata", None)
        return {"ragged": self.ran_eagerly and bool(getattr(held, "use_ragged", False))}

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        """On one of the backend's servers."""
        with (
            self.attends_on.server(self._config),
            contextlib.nullcontext() if batch is None else self._drafted(batch),
        ):
            yield
