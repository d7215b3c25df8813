"""Prompts of a draft model of Qwen4-Exp with one line of the engine changed; opened by name."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.runners.qsa_draft_prefill import (
    QsaDraftPrefillSession,
    QsaDraftPrefillTarget,
)
from tests.targets.sglang.planted import with_a_line_changed

_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"
_MODEL = "sglang.srt.models.qwen4_exp_mtp:Qwen4ExpForCausalLMMTP"
_NAME = "sglang-qsa-draft-prefill"


def _target() -> QsaDraftPrefillTarget:
    return QsaDraftPrefillTarget(_NAME)


hidden_states_of_the_prompt_before = with_a_line_changed(
    _target, _RUNNER, "load_batch",
    "self.static_draft_hidden_states[:num_tokens].copy_(", "repr(",
)  # fmt: skip
stream_of_the_prompt_before = with_a_line_changed(
    _target, _RUNNER, "_execute_body_capture",
    "self._fill_input_embeds_slot(args, layer_kwargs, static_num_tokens)", "pass",
)  # fmt: skip
stream_of_the_first_tokens_handed_on = with_a_line_changed(
    _target, _MODEL, "_set_hc_logits_hidden_states",
    "torch.cumsum(forward_batch.extend_seq_lens.to(torch.int64), dim=0) - 1",
    "torch.cumsum(forward_batch.extend_seq_lens.to(torch.int64), dim=0)"
    " - forward_batch.extend_seq_lens",
)  # fmt: skip


class _TextSession(QsaDraftPrefillSession):
    images = False


class _TextTarget(QsaDraftPrefillTarget):
    """A server with `--language-model-only`, whose runner has no slot for embeddings."""

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> QsaDraftPrefillSession:
        return _TextSession(config, graphs, self._kind)


def text_alone() -> QsaDraftPrefillTarget:
    return _TextTarget(_NAME)
