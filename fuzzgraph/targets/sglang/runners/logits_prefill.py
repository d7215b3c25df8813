"""Targets `sglang-logits-prefill` and `sglang-logits-full-prefill`: a model's head behind graphs.

The release's own runner replays the body of the model and runs its head behind it: the engine's
`LogitsProcessor` makes logits of each request's last row, logprobs of prompts where clients ask for
them, and hands out hidden states. What it hands on is judged, beside buffers and metadata;
attention is judged by the targets of the same graphs without a head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.language_head import HIDDEN, LOGITS, VOCABULARY
from fuzzgraph.ports import GraphEngine
from fuzzgraph.prompt_head import (
    PROMPT_LOGPROBS,
    PROMPT_OUTPUTS,
    TOP_LOGPROBS,
    asked_starts,
    asked_tokens,
    top_counts,
)
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.sglang.backends.logits import RETURNING, as_on_cuda, load_head
from fuzzgraph.targets.sglang.backends.triton import OF_ONE_RANK
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.logits_prefill_model import LogitsPrefillModel
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.full_prefill import FullPrefillSession, FullPrefillTarget
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import FULL
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import in_environment
from fuzzgraph.targets.sglang.stubs.shared_logits import load_shared_logits, shared_logits
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.world import Batch

_INFO = "sglang.srt.model_executor.forward_batch_info"
_ENVIRONMENT = "sglang.srt.environ"
_HIDDEN_MODES = {"none": "NULL", "full": "FULL", "last": "LAST", "aux": "FULL"}
_CHUNK = "3"
"""Rows of which logprobs are made at a time."""
_NAMES = ("SGLANG_ENABLE_LOGPROB_CHUNK", "SGLANG_LOGPROB_CHUNK_SIZE")
_NAMES_BEFORE = ("SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK", "SGLANG_LOGITS_PROCESSER_CHUNK_SIZE")
_EAGER = (
    "sglang breakable_cuda_graph_runner.py can_run, to 0.5.13: no graph where a client asks for "
    "logprobs of its prompt"
)


class _BehindHead(PrefillSession):
    """What a session of prefill graphs has with a head behind their body."""

    model = LogitsPrefillModel

    @property
    def arguments(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {**super().arguments, **RETURNING[self._config.returned_hidden]}

    def _open_backend(self, runner: ModelRunner) -> Any:
        backend = super()._open_backend(runner)
        assert isinstance(self._model, LogitsPrefillModel)
        runner.model_config.vocab_size = VOCABULARY
        self._use()
        with _chunked(self._config):
            self._model.head.open_head(runner.configuration.everyone)
        return backend

    def capture(self) -> None:
        self._use()
        with self.engine_runs():
            self._model_runner.graph_shared_output = shared_logits(self._model_runner)
        super().capture()

    def _asked(self, batch: Batch) -> Mapping[str, Any]:
        mode = _HIDDEN_MODES[self._config.returned_hidden]
        asked = {"capture_hidden_mode": engine_module(_INFO).CaptureHiddenMode[mode]}
        if self._config.prompt_logprobs == "none":
            return asked
        return {**asked, **_asks_logprobs(batch, self._model_runner.device)}

    def _rule_against(self, batch: Batch) -> str:
        asks = self._config.prompt_logprobs != "none"
        return _EAGER if asks and not self.runner.makes_logprobs else super()._rule_against(batch)

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        if mode == "idle":
            return ()
        hidden = (HIDDEN,) if self._config.returned_hidden != "none" else ()
        asked = PROMPT_OUTPUTS if self._config.prompt_logprobs != "none" else ()
        return (LOGITS, *hidden, *asked)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        """What the engine has handed on; a list of a token's largest logprobs behind another's."""
        tops = outputs.input_top_logprobs_val
        found = {
            LOGITS: outputs.next_token_logits,
            HIDDEN: outputs.hidden_states,
            PROMPT_LOGPROBS: outputs.input_token_logprobs,
            TOP_LOGPROBS: None if tops is None else torch.tensor(_flat(tops)),
        }
        return {name: shown.clone() for name, shown in found.items() if shown is not None}


def _flat(values: Any) -> list[float]:
    """Numbers of nested lists, in their order."""
    if not isinstance(values, list):
        return [values]
    return [number for value in values for number in _flat(value)]


def _asks_logprobs(batch: Batch, device: str) -> dict[str, Any]:
    """What clients that want logprobs of their prompts make of a batch (sglang schedule_batch.py
    prepare_for_extend)."""
    return {
        "return_logprob": True,
        "extend_logprob_start_lens_cpu": asked_starts(batch).tolist(),
        "top_logprobs_nums": top_counts(batch).tolist(),
        "token_ids_logprobs": [None] * batch.raw_bs,
        "extend_input_logprob_token_ids_gpu": torch.tensor(asked_tokens(batch), device=device),
    }


def _chunked(config: EngineConfig) -> contextlib.AbstractContextManager[None]:
    """Around the making of a head whose server makes few logprobs at a time."""
    if config.prompt_logprobs != "chunked":
        return contextlib.nullcontext()
    known = hasattr(engine_module(_ENVIRONMENT).envs, _NAMES[0])
    enable, size = _NAMES if known else _NAMES_BEFORE
    return in_environment({enable: "1", size: _CHUNK}, contextlib.nullcontext())


class LogitsPrefillSession(_BehindHead):
    """A head behind breakable graphs, on Triton attention."""

    def engine_runs(self) -> contextlib.AbstractContextManager[None]:
        return as_on_cuda()


class FullLogitsPrefillSession(_BehindHead, FullPrefillSession):  # type: ignore[misc]
    """A head behind full graphs, on FlashAttention 3."""

    @contextlib.contextmanager
    def engine_runs(self) -> Iterator[None]:
        with super().engine_runs(), as_on_cuda():
            yield


def _not_driven(config: EngineConfig) -> str | None:
    if config.prompt_logprobs != "none" and config.dp_size > 1:
        return "logprobs of prompts of data-parallel ranks are not driven"
    return None


_OF_A_HEAD: Mapping[str, Any] = {
    "final_logit_caps": (0, 2),
    "returned_hidden": ("none", "full", "last", "aux"),
    "prompt_logprobs": ("none", "whole", "chunked"),
    "images": False,
    "layer_types": False,
}


class _WithHead(SglangTarget):
    """What a target of prefill graphs has with a head behind their body."""

    def refused(self, config: EngineConfig) -> str | None:
        return _not_driven(config) or super().refused(config)

    def load(self) -> None:
        super().load()
        self.capabilities = load_head(self.capabilities)
        with cuda_on_cpu():
            load_shared_logits()


class LogitsPrefillTarget(_WithHead, PrefillTarget):
    """A model's head behind breakable graphs of the sglang release that this process holds."""

    attends_alone = False

    def __init__(self, name: str) -> None:
        super().__init__(name, "breakable")
        self.about = "logits, hidden states and logprobs behind breakable prefill graphs"
        self.capabilities = self.capabilities.replace(**{**OF_ONE_RANK, **DATA_RANKS, **_OF_A_HEAD})

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> LogitsPrefillSession:
        return LogitsPrefillSession(config, graphs, self._kind)


class FullLogitsPrefillTarget(_WithHead, FullPrefillTarget):
    """The same behind full graphs."""

    about = "logits, hidden states and logprobs behind full prefill graphs"
    capabilities = FullPrefillTarget.capabilities.replace(
        **{**OF_ONE_RANK, **DATA_RANKS, **_OF_A_HEAD}
    )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> FullLogitsPrefillSession:
        return FullLogitsPrefillSession(config, graphs, FULL)
