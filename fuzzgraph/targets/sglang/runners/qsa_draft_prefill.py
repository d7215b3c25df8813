"""Target `sglang-qsa-draft-prefill`: prefill graphs of a draft model of Qwen4-Exp.

EAGLE's worker has the draft model compute each prompt behind the target model, and captures that
as the target's is captured (sglang eagle_worker_v2.py, `init_cuda_graphs`). The outer model finds
the target's hidden states in a static buffer of the runner; the graph finds what it makes of them
in the slot of embeddings, which a server of a model with images has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import hidden_width
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference import LAST_ATTENTION
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS
from fuzzgraph.targets.sglang.attention_model import hidden_in
from fuzzgraph.targets.sglang.drafted_groups_model import DRAFT_MODELS, drafted_model
from fuzzgraph.targets.sglang.runners.draft_prefill import asked_of_a_draft
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.targets.sglang.runners.qsa_prefill import QsaPrefillSession, QsaPrefillTarget
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

__all__ = ["QsaDraftPrefillTarget"]


class QsaDraftPrefillSession(QsaPrefillSession):
    """An opened runner of a draft model on the engine's backend."""

    drafts = True
    model = staticmethod(drafted_model)  # type: ignore[assignment]
    also_promised = (GROUP_KEYS, GROUP_STRAYS, LAST_ATTENTION)
    images = True
    """Whether the server's model takes images, with which no request of a case comes."""

    def _open_backend(self, runner: ModelRunner) -> Any:
        opened = super()._open_backend(runner)
        described = runner.model_config
        described.hf_config.architectures = ["Qwen4ExpForCausalLMMTP"]
        described.spec_hidden_size = hidden_width(self._config)
        described.is_multimodal = self.images
        return opened

    def _asked(self, batch: Batch) -> Mapping[str, Any]:
        return asked_of_a_draft(batch, self._model_runner)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        last = hidden_in(outputs, self._config)["attention"]
        return {**PrefillSession.named_outputs(self, outputs), LAST_ATTENTION: last}


class QsaDraftPrefillTarget(QsaPrefillTarget):
    """Prefill graphs of the draft model on the sglang release that this process holds."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.about = "breakable prefill graphs of a draft model, Qwen's sparse attention"
        self.also_stood_in_for = (
            *self.also_stood_in_for,
            "norms and projections of the outer model",
        )
        self.capabilities = self.capabilities.replace(
            modes=("prefill",), max_dp_size=1, max_tp_size=1
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> QsaDraftPrefillSession:
        return QsaDraftPrefillSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        return *super().modules(), DRAFT_MODELS
