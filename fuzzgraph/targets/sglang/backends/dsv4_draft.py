"""EAGLE's drafts on DeepSeek V4's attention: `sglang-dsv4-draft` and `sglang-dsv4-draft-extend`.

A draft model of DeepSeek V4 has one layer, which sees the last tokens and compresses nothing
(sglang deepseek_v4_nextn.py). Its drafts have a backend for each step and one more, which is
captured and never replayed (`DeepseekV4MultiStepBackend`); what a step finds in metadata is a copy
of the first one's, so that no step sees a draft. Metadata is upgraded inside the graph, as for
decodes. Real are both of EAGLE's runners, the worker's loop, and of the backend what `dsv4` says.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend
from fuzzgraph.targets.sglang.backends.draft_extend import DraftExtendSession, DraftExtendTarget
from fuzzgraph.targets.sglang.backends.dsv4 import (
    BACKEND,
    TABLE,
    Dsv4Target,
    prepare_dsv4,
    refused_width,
    set_environment,
)
from fuzzgraph.targets.sglang.backends.stepwise_draft import (
    StepwiseBackend,
    StepwiseDraftSession,
    StepwiseDraftTarget,
)
from fuzzgraph.targets.sglang.compressed_draft_model import CompressedDraftModel
from fuzzgraph.targets.sglang.excuses.deepseek import (
    DSV4_DRAFT_EXTEND_EXCUSES,
    DSV4_EXCUSES,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

__all__ = ["Dsv4DraftExtendTarget", "Dsv4DraftTarget"]


def _read(metadata: Any) -> dict[str, torch.Tensor]:
    core = metadata.core_attn_metadata
    return {"page_table": core.page_table, "seq_lens_casual": core.seq_lens_casual}


_DSV4 = AttentionBackend(
    "dsv4",
    places=((BACKEND, "DeepseekV4AttnBackend"),),
    attentions=("mla",),
    page_sizes=(256,),
    fields=("page_table", "seq_lens_casual"),
    own_fields=lambda config: (
        fields.value("seq_lens_casual", repeats="token_lens", source=TABLE),
    ),
    read=_read,
    max_context_len=8192,
    whole_rows=True,
    refuses=refused_width,
    draft_model=CompressedDraftModel,
    stood_in_for=(
        "sparse FlashMLA and the write of KV, by models",
        "the KV pool's constructor",
        "FP8 of the KV",
    ),
    more=(
        ("kv_compressions", ("window",)),
        ("max_batch", 4),
        ("max_wide_batch", 0),
        ("min_rope_dim", 0),
        ("capture_beyond_pool", False),
    ),
)
_STEPS = StepwiseBackend(_DSV4, ("DeepseekV4MultiStepBackend",))


class _OnCompressedPool:
    """Opens the backend on the pool of DeepSeek V4; comes before a session of drafts."""

    _config: EngineConfig

    def _open_backend(self, runner: ModelRunner) -> Any:
        prepare_dsv4(runner, self._config)
        # sglang 0.5.21 on, kv_cache_configurator.py: of a draft worker no layer compresses.
        runner.token_to_kv_pool.present_ratios = ()
        return super()._open_backend(runner)  # type: ignore[misc]


class Dsv4DraftSession(_OnCompressedPool, StepwiseDraftSession):
    """One draft runner and the backends of its steps."""

    def _shown_metadata(self, size: int | None) -> dict[str, torch.Tensor]:
        """None that is a buffer: a graph makes its own of raw metadata, at each replay."""
        return {}


class Dsv4DraftTarget(StepwiseDraftTarget):
    """EAGLE's draft runner on the sglang release that this process holds."""

    excuses = (*StepwiseDraftTarget.excuses, *DSV4_EXCUSES)
    not_on_device = Dsv4Target.not_on_device

    def __init__(self, name: str) -> None:
        super().__init__(name, _STEPS)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Dsv4DraftSession:
        return Dsv4DraftSession(config, graphs, _STEPS)

    def load(self) -> None:
        set_environment()
        super().load()


class Dsv4DraftExtendSession(_OnCompressedPool, DraftExtendSession):
    """One draft-extend runner and the backend that attends."""


class Dsv4DraftExtendTarget(DraftExtendTarget):
    """EAGLE's draft-extend runner on the sglang release that this process holds."""

    backends = MappingProxyType({"dsv4": _DSV4})
    first = (0, 5, 16)
    excuses = (*DraftExtendTarget.excuses, *DSV4_DRAFT_EXTEND_EXCUSES)
    not_on_device = Dsv4Target.not_on_device

    def __init__(self, name: str, backend: str = "dsv4") -> None:
        super().__init__(name, backend)
        self.capabilities = self.capabilities.replace(state_tracking=False)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Dsv4DraftExtendSession:
        return Dsv4DraftExtendSession(config, graphs, self._kind, self.backend)

    def load(self) -> None:
        set_environment()
        super().load()
