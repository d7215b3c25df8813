"""A model's head behind Triton attention: logits and hidden states of decodes and verifies.

The head is the engine's own, see `logits_model`, and so is what its graph runner hands on of a
replay, and its model runner of a forward without a graph: rows of requests alone. Logits of all
graphs lie in one buffer.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.language_head import HIDDEN, LOGITS, LOGITS_OF_RANKS, VOCABULARY
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu, tensors_claim_cuda
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.triton import (
    OF_ONE_RANK,
    TritonSession,
    TritonTarget,
    triton_backend,
)
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.forward_batch.data_ranks import cut_for_rank
from fuzzgraph.targets.sglang.logits_model import HEADS, PROCESSOR, LogitsModel
from fuzzgraph.targets.sglang.release import SGLANG, engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.server_args import is_argument
from fuzzgraph.targets.sglang.stubs.tp_groups import with_own_storage
from fuzzgraph.world import Batch

_LAST = "return_hidden_states_mode"
"""The argument of a server that returns hidden states of last tokens alone, where a release has it:
before, graphs are captured with those of all tokens or none (cuda_graph_runner.py)."""
RETURNING: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "none": {},
    "full": {"enable_return_hidden_states": True},
    "last": {"enable_return_hidden_states": True, _LAST: "last"},
    "aux": {"speculative_algorithm": "EAGLE3"},
})  # fmt: skip
"""What a server is told so that its model hands hidden states out, as `returned_hidden` says."""
_MAKES = "_get_logits"
"""What casts logits, and caps what it casts, by kernels if they lie on a GPU."""
_GATHERS = "compute_dp_attention_metadata"
_INFO = "sglang.srt.model_executor.forward_batch_info"


class LogitsSession(TritonSession):
    """One layer, one head and one decode runner with its captured graphs."""

    model_class = LogitsModel

    def _server_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        shared = {"enable_dp_lm_head": False} if config.gathered_logits else {}
        return {**shared, **RETURNING[config.returned_hidden]}

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        return as_on_cuda()

    def _open_backend(self, runner: ModelRunner) -> Any:
        model = runner.model
        assert isinstance(model, LogitsModel)
        self._use()
        model.open_head(runner.configuration.everyone)
        runner.model_config.vocab_size = VOCABULARY  # of the buffer that graphs write logits to
        return triton_backend(runner)

    def _translate(self, batch: Batch) -> Any:
        """A server that returns hidden states asks each batch for them (sglang 0.5.23
        ForwardBatch.init_new; before, each of these cases' requests asks)."""
        given = super()._translate(batch)
        if self._config.returned_hidden in ("full", "last"):
            mode = engine_module(_INFO).CaptureHiddenMode
            given.capture_hidden_mode = mode[self._config.returned_hidden.upper()]
        return given

    def replay(self, batch: Batch) -> None:
        super().replay(batch)
        if not self.ran_eagerly:
            with self.engine_runs(batch):
                self._outputs = self.runner.handed_out(self._last_batch, self._outputs)

    def _forward_eagerly(self) -> None:
        super()._forward_eagerly()
        if self._padded_eagerly and self._outputs is not None:
            # The batch itself stays padded: its fields are judged as the forward had them.
            cut_for_rank(copy.copy(self._last_batch), self._outputs)

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        seen.shown_tokens = batch.num_tokens
        return seen

    def plan(self) -> dict[str, object]:
        """Rows of the head's product, by which a matrix product may sum in another order: those of
        all ranks that share it, which without a graph have as many as they need."""
        return {**super().plan(), "head_rows": self._head_rows()}

    def _head_rows(self) -> int:
        shares = self._config.gathered_logits
        if not self.ran_eagerly:
            ranks = self._config.dp_size if shares else 1
            return self._padded_tokens(self.runner.padded_bs) * ranks
        given = self._last_batch
        return sum(given.global_num_tokens_for_logprob_cpu) if shares else len(given.input_ids)

    @property
    def _returns_hidden(self) -> bool:
        """A verify needs hidden states for drafts that follow, whatever the server returns."""
        return self._verifies or self._config.returned_hidden != "none"

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        of_ranks = (LOGITS_OF_RANKS,) if self._config.gathered_logits else ()
        if mode == "idle":
            return of_ranks
        return (LOGITS, *((HIDDEN,) if self._returns_hidden else ()), *of_ranks)

    @property
    def computes_for_others(self) -> bool:  # type: ignore[override]
        return self._config.gathered_logits

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        found = super().shown_outputs()
        if self._config.gathered_logits:
            assert isinstance(self._attention, LogitsModel) and self._past is not None
            assert self._attention.ranks is not None
            found[LOGITS_OF_RANKS] = self._attention.ranks.given(self._past[0])
        return found

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        found = {LOGITS: outputs.next_token_logits, HIDDEN: outputs.hidden_states}
        return {name: shown.clone() for name, shown in found.items() if shown is not None}


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Inside, logits are made as on a GPU, and the buffer that ranks gather hidden states in is an
    allocation of its own."""
    module = engine_module(PROCESSOR)
    metadata, processor = module.LogitsMetadata, module.LogitsProcessor
    compute, makes = metadata.compute_dp_attention_metadata, getattr(processor, _MAKES)

    def computed(self: Any) -> None:
        compute(self)
        self.gathered_buffer = with_own_storage(self.gathered_buffer)

    if not torch.cuda.is_available():
        makes = tensors_claim_cuda(makes)
    gathered = replaced_names([metadata], {_GATHERS: computed})
    with cuda_on_cpu(), gathered, replaced_names([processor], {_MAKES: makes}):
        yield


def load_head(can: Capabilities) -> Capabilities:
    """What servers of this release have of a target with a head; what it is made of is imported."""
    with cuda_on_cpu():
        SGLANG.load(PROCESSOR, HEADS)
    if is_argument(_LAST):
        return can
    kept = tuple(each for each in can.returned_hidden if each != "last")
    return can.replace(returned_hidden=kept)


class LogitsTarget(TritonTarget):
    """A model's head on the sglang release that this process holds."""

    also_stood_in_for = ("the number of cores", "what other ranks have")

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        super().__init__(name, mode)
        self.about = f"a model's head behind Triton attention, {mode} graphs"
        kept = ("none", "aux") if mode == "target_verify" else ("none", "full", "last")
        self.capabilities = self.capabilities.replace(
            modes=(mode, "idle"),
            layer_types=False,
            final_logit_caps=(0, 2),
            gathered_logits=True,
            returned_hidden=kept,
            **{**OF_ONE_RANK, **DATA_RANKS},
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> LogitsSession:
        return LogitsSession(config, graphs)

    def load(self) -> None:
        super().load()
        self.capabilities = load_head(self.capabilities)
