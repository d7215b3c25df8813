"""Draft models of text alone whose outer model adds hidden states, in prefill graphs of their own.

Real are the outer model of Qwen3-Next's draft model and the runner that EAGLE's worker opens on it,
on Triton attention. Its norms are left out, and its projection adds the two halves of its input.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import hidden_width
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.attention_model import AttentionModel, as_logits
from fuzzgraph.targets.sglang.drafted_groups_model import StreamBody
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.targets.sglang.runners.qsa_draft_prefill import asked_of_a_draft
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

_MODELS = "sglang.srt.models.qwen3_next_mtp"


def _drafts(config: EngineConfig, device: torch.device) -> Any:
    engine: Any = engine_module(_MODELS).Qwen3NextForCausalLMMTP

    class Drafts(engine):  # type: ignore[misc]
        shared_experts_config = None
        decides_on_host = False
        quant_config = None
        lm_head = None

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.model = StreamBody(config, device, AttentionModel)
            self.pre_fc_norm_embedding = self.pre_fc_norm_hidden = torch.nn.Identity()

        def fc(self, both: torch.Tensor) -> torch.Tensor:
            embedded, hidden = both.chunk(2, -1)
            return embedded + hidden

        def logits_processor(self, input_ids: Any, hidden: Any, *_: Any) -> Any:
            return as_logits(hidden)

    return Drafts()


class _Session(PrefillSession):
    drafts = True
    model = staticmethod(_drafts)  # type: ignore[assignment]

    def _open_backend(self, runner: ModelRunner) -> Any:
        runner.model_config.spec_hidden_size = hidden_width(self._config)
        return super()._open_backend(runner)

    def _asked(self, batch: Any) -> Any:
        return asked_of_a_draft(batch, self._model_runner)


class _Target(PrefillTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> PrefillSession:
        return _Session(config, graphs, self._kind)


def target() -> PrefillTarget:
    return _Target("sglang-breakable-prefill", "breakable")
