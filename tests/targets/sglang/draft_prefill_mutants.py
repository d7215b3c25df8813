"""Prompts of draft models with one line of the engine changed; opened by name."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import hidden_width
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.runners.draft_prefill import DraftPrefillSession, DraftPrefillTarget
from tests.targets.sglang.planted import with_a_line_changed

_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"
_LOGITS = "sglang.srt.layers.logits_processor:LogitsProcessor"
_NAME = "sglang-draft-prefill"


def _target() -> DraftPrefillTarget:
    return DraftPrefillTarget(_NAME)


hidden_states_of_the_prompt_before = with_a_line_changed(
    _target, _RUNNER, "load_batch",
    "self.static_draft_hidden_states[:num_tokens].copy_(", "repr(",
)  # fmt: skip
hidden_states_of_the_token_before = with_a_line_changed(
    _target, _RUNNER, "load_batch",
    "forward_batch.spec_info.hidden_states", "forward_batch.spec_info.hidden_states.roll(1, 0)",
)  # fmt: skip
first_rows_handed_on = with_a_line_changed(
    _target, _LOGITS, "_get_pruned_states",
    "last_index = torch.cumsum(logits_metadata.extend_seq_lens, dim=0) - 1",
    "last_index = torch.cumsum(logits_metadata.extend_seq_lens, dim=0)"
    " - logits_metadata.extend_seq_lens",
)  # fmt: skip


class _ImageSession(DraftPrefillSession):
    def _open_backend(self, runner: Any) -> Any:
        runner.model_config.is_multimodal = True
        model: Any = self._model
        model.input_embeds_hidden_size = hidden_width(self._config)
        return super()._open_backend(runner)


class _ImageTarget(DraftPrefillTarget):
    """A server whose model takes images, so that its runner has a slot for embeddings."""

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DraftPrefillSession:
        return _ImageSession(config, graphs, self._kind)


def with_a_slot() -> DraftPrefillTarget:
    return _ImageTarget(_NAME)
