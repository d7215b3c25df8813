"""Prefill graphs of Qwen's sparse attention, which break at its indexer and at its attention.

The release's own runner pads tokens to a captured count. At each break the engine's indexer and
`QwenSparseAttnBackend` run anew, on a batch that nobody has padded: keys of groups are made and
scored, some are selected, and Triton kernels attend to their tokens. What is selected reaches the
second break over a buffer that all graphs of a layer share. Engines capture prompts of this model
(sglang 0.5.22 and 0.5.23 model_config.py, `multimodal_breakable_cuda_graph_supported_model_archs`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS, HIDDEN_STREAMS
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, tensors_claim_cuda
from fuzzgraph.targets.sglang.attention_model import hidden_in
from fuzzgraph.targets.sglang.backends.attention_backend import open_backend
from fuzzgraph.targets.sglang.backends.left_keys import LeavesKeys
from fuzzgraph.targets.sglang.backends.qsa import QSA
from fuzzgraph.targets.sglang.excuses.decode import RING_EXCUSES
from fuzzgraph.targets.sglang.excuses.prefill import PREFILL_EXCUSES
from fuzzgraph.targets.sglang.prompted_groups_model import MODELS, PromptsModel
from fuzzgraph.targets.sglang.release import demand_release
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import BREAKABLE
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession, input_fields
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import cuda_server

__all__ = ["QsaPrefillTarget"]

_STOOD_IN_FOR = (
    "the preparation of the indexer's queries and keys, its scores and both selections of groups,"
    " by models",
    "the table of rotations",
)
_HOPPER = {**DEVICE, "get_device_name": lambda *_: "NVIDIA H100"}


def _as_on_cuda(engine: Any) -> Any:
    """The backend, which attends to prompts by the kernels that it has on CUDA."""

    def forward_extend(self: Any, *args: Any, **kwargs: Any) -> Any:
        return tensors_claim_cuda(engine.forward_extend)(self, *args, **kwargs)

    return type(engine.__name__, (engine,), {"forward_extend": forward_extend})


class QsaPrefillSession(LeavesKeys, PrefillSession):
    """An opened runner on the engine's backend."""

    attention = QSA.name
    model = PromptsModel
    also_promised = (GROUP_KEYS, GROUP_STRAYS, HIDDEN_STREAMS)

    @staticmethod
    def declared(config: EngineConfig) -> tuple[Field, ...]:
        return input_fields(config)

    @contextlib.contextmanager
    def engine_runs(self) -> Iterator[None]:
        with cuda_server(_HOPPER):
            yield

    def _open_backend(self, runner: ModelRunner) -> Any:
        # By this name the engine's runner knows that hidden states come beside the body's output.
        runner.model_config.hf_config.architectures = ["Qwen4ExpForConditionalGeneration"]
        return open_backend(QSA, runner, _as_on_cuda if runner.device == "cpu" else lambda it: it)

    def _attention_metadata(self) -> dict[str, torch.Tensor]:
        return {}

    def plan(self) -> dict[str, object]:
        return {}

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        streams = hidden_in(outputs, self._config)
        return {**super().named_outputs(outputs), HIDDEN_STREAMS: streams["attention"]}


class QsaPrefillTarget(PrefillTarget):
    """Prefill graphs of the layer on the sglang release that this process holds."""

    any_page_size = False
    attends_alone = False
    excuses = (*PREFILL_EXCUSES, *RING_EXCUSES)

    def __init__(self, name: str, kind: str = BREAKABLE.name) -> None:
        super().__init__(name, kind)
        (graphs,) = self.capabilities.prefill_runners
        self.about = f"{graphs} prefill graphs, Qwen's sparse attention"
        self.also_stood_in_for = (*self.also_stood_in_for, *_STOOD_IN_FOR)
        self.capabilities = self.capabilities.replace(
            **{
                **dict(QSA.more),
                "dtypes": ("float32", "float16"),
                "page_sizes": QSA.page_sizes,
                "max_context_len": QSA.max_context_len,
                "images": False,
                "row_mixings": ("none",),
            }
        )

    def refused(self, config: EngineConfig) -> str | None:
        return super().refused(config) or QSA.refuses(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> QsaPrefillSession:
        return QsaPrefillSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        # Before, engines capture no prompts of this model, nor break at its indexer.
        demand_release((0, 5, 22), "breaks no prefills at its indexer", self.name)
        return (QSA.place()[0], *super().modules(), MODELS)
