"""`--moe-a2a-backend deepep --deepep-mode low_latency`: experts that DeepEP exchanges tokens for.

Data-parallel ranks keep their tokens; kernels of low latency send each one to the ranks of its
experts, within graphs of decodes and without them. Real are the block of Qwen3-MoE on its path for
DeepEP (`forward_deepep`), `TopK` with its mask of padded tokens, `DeepEPDispatcher`, `DeepEPMoE`,
the runner of DeepGEMM with the activation between its products (Triton), the recorder. Experts are
in bfloat16, which such a server takes as it is (`--moe-runner-backend deep_gemm`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.experts.weights import UNQUANTISED
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.sglang.backends.moe import MoeSession, MoeTarget
from fuzzgraph.targets.sglang.exchanged_experts_model import ExchangedExpertsModel
from fuzzgraph.targets.sglang.expert_exchange import ADAPTED_FROM, DEEPEP
from fuzzgraph.targets.sglang.forward_batch.gathered_tokens import load_model_runner, pad_for_all
from fuzzgraph.targets.sglang.release import SGLANG, demand_release
from fuzzgraph.targets.sglang.stubs.low_latency_exchange import most_sent
from fuzzgraph.targets.sglang.stubs.low_latency_experts import (
    LOW_LATENCY_MODULES,
    exchanged_as_on_cuda,
    most_dispatched,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_RECEIVED = "DeepEP buffer.py low_latency_dispatch: recv_count; ids of -1 are sent nowhere"


class MoeDeepepSession(MoeSession):
    """One block of experts behind an exchange, and one decode runner with its captured graphs."""

    model_class = ExchangedExpertsModel
    shown_ids = (("topk_ids", "chosen_experts"), ("dispatched_ids", "chosen_experts"))

    def _server_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        return {
            **super()._server_arguments(config),
            **DEEPEP,
            "deepep_mode": "low_latency",
            "moe_runner_backend": "deep_gemm",
        }

    def _masks_padded_tokens(self, config: EngineConfig) -> bool:
        return True

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        counts = common.value("received_counts", repeats="received_counts", source=_RECEIVED)
        return (*super()._more_fields(config), counts)

    def _open_backend(self, runner: ModelRunner) -> Any:
        with most_dispatched(most_sent(self._config)):
            backend = super()._open_backend(runner)
        self._exchange.use(self._exchanged.buffer)
        return backend

    def _pad_for_ranks(self, given: Any) -> None:
        """Whose live tokens the model runner counts then, for the mask of the others."""
        pad_for_all(given, self._model_runner)

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        with exchanged_as_on_cuda(), super().engine_runs(batch):
            yield

    @property
    def _exchanged(self) -> ExchangedExpertsModel:
        assert isinstance(self._attention, ExchangedExpertsModel)
        return self._attention

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super()._used(lens)
        if self._outputs is not None:
            found["received_counts"] = self._exchanged.received.long()
        return found


class MoeDeepepTarget(MoeTarget):
    """Experts behind DeepEP's exchange on the sglang release that this process holds."""

    also_stood_in_for = (
        "the number of cores",
        "DeepEP's kernels, DeepGEMM's, and the compiled ones that route (models)",
        "what other ranks of experts have",
        "DeepEP's setup of its memory",
    )

    def __init__(self, name: str) -> None:
        super().__init__(name, "decode")
        self.about = "Qwen3's experts exchanged by DeepEP at low latency, decode graphs"
        self.capabilities = self.capabilities.replace(
            dtypes=("bfloat16",),
            expert_quantisations=(UNQUANTISED,),
            expert_exchanges=("scatterv",),
            data_ranks_only=True,
        )

    def refused(self, config: EngineConfig) -> str | None:
        if config.dp_size == 1:
            return "experts are exchanged between data-parallel ranks: dp_size must be 2 or more"
        return super().refused(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MoeDeepepSession:
        return MoeDeepepSession(config, graphs)

    def load(self) -> None:
        lack = "prepares an exchange within a runner's replay, not before it,"
        demand_release(ADAPTED_FROM, lack, self.name)
        super().load()
        self.capabilities = self.capabilities.replace(custom_all_reduce=False)
        with cuda_on_cpu():
            load_model_runner()
            SGLANG.load(*LOW_LATENCY_MODULES)
