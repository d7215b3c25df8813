"""Uno's decode runner: a model drafts a block with an adapter of its own, and verifies it without.

Real: `UnoDecodeCudaGraphRunner` with two graphs of each size, the worker's blocks and their routing
(`UnoWorkerV2`), `LoRAManager` with `UnoCublasLoRABackend`, Triton attention. A case has steps of
one kind, drafts or verifies, as its config says; before each of them the graph of the other kind is
replayed on the same rows, as a server replays both in turn. Stood in for is what `backends/lora.py`
says, and the order of CUDA streams.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.adapters import DRAFT_ADAPTER
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import in_forward_context
from fuzzgraph.targets.sglang.backends.lora import SORTS, LoraSession, LoraTarget
from fuzzgraph.targets.sglang.backends.triton import TritonSession
from fuzzgraph.targets.sglang.excuses.blocks import UNO_EXCUSES
from fuzzgraph.targets.sglang.forward_batch.decode import mirror
from fuzzgraph.targets.sglang.release import SGLANG, demand_release, engine_module
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.capture import forget_input_buffers
from fuzzgraph.targets.sglang.runners.decode_cuda_graph_runner import DecodeCudaGraphRunnerDriver
from fuzzgraph.targets.sglang.stubs.adapter_ranks import name_of
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_RUNNER = "sglang.srt.speculative.uno_cuda_graph_runner"
_WORKER = "sglang.srt.speculative.uno_worker_v2"
_BACKEND = "sglang.srt.lora.backend.uno_cublas_backend"
_SPEC = "sglang.srt.speculative.spec_info"
_FROM = (0, 5, 20)
_ROUTED = "sglang uno_worker_v2.py _run_draft_block: all tokens of a row but the first have it"
_MIRROR = "sglang uno_worker_v2.py _forward_decode: on the host lengths have the block, too"


class UnoRunnerDriver(DecodeCudaGraphRunnerDriver):
    """`UnoDecodeCudaGraphRunner` over a backend of ours."""

    def _kind(self, module: Any) -> Any:
        return engine_module(_RUNNER).UnoDecodeCudaGraphRunner

    def routing(self, size: int) -> Any:
        """What LoRA's kernels read in a graph of drafts."""
        return self._engine._lora_state._draft_batch_infos[size]


class UnoTarget(LoraTarget):
    """Uno's runner of the sglang release that this process holds."""

    excuses = UNO_EXCUSES
    also_stood_in_for = tuple(what for what in LoraTarget.also_stood_in_for if what != SORTS)

    def __init__(self, name: str) -> None:
        super().__init__(name, "uno_cublas", "target_verify")
        self.about = "blocks drafted with an adapter and verified without, by Uno"
        self.capabilities = self.capabilities.replace(
            loras=False,
            experts=False,
            draft_adapters=True,
            drafted_blocks=("none", "causal"),
            max_draft_tokens=8,
            max_spec_steps=1,
        )

    def refused(self, config: EngineConfig) -> str | None:
        if not config.draft_adapter or config.drafted_blocks == "whole":
            return "the server drafts by an adapter, blocks of which no token sees those behind it"
        return super(LoraTarget, self).refused(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> UnoSession:
        return UnoSession(config, graphs, self._kernels)

    def modules(self) -> tuple[str, ...]:
        demand_release(_FROM, "has no UnoDecodeCudaGraphRunner", self.name)
        return super().modules()

    def load(self) -> None:
        super().load()
        with _sampling_kernels():
            SGLANG.load(_BACKEND, _RUNNER, _WORKER)


@contextlib.contextmanager
def _sampling_kernels() -> Iterator[None]:
    """While the worker is imported, which takes a kernel of FlashInfer's for what samples."""
    known = sys.modules.get("flashinfer")
    # One without a spec stands in for another kernel, for another target of the same process.
    if (find_spec("flashinfer") if known is None else known.__spec__) is not None:
        yield
        return
    sys.modules["flashinfer"] = ModuleType("flashinfer")
    sys.modules["flashinfer"].top_k = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del sys.modules["flashinfer"]
        if known is not None:
            sys.modules["flashinfer"] = known


class UnoSession(LoraSession):
    """The worker, its runner, and one layer of attention beside linear layers."""

    runner: UnoRunnerDriver

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        """LoRA's first product runs on a stream of its own."""
        return cuda_on_cpu({**DEVICE, **STREAMS})

    @property
    def _drafts(self) -> bool:
        return self._config.drafted_blocks != "none"

    def _server_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        return {"speculative_algorithm": "UNO", "uno_lora_path": "/adapter"}

    def _open_backend(self, runner: ModelRunner) -> Any:
        backend = super()._open_backend(runner)
        runner.uno_lora_id = name_of(DRAFT_ADAPTER)
        self._manager.fetch_new_loras({None, runner.uno_lora_id})
        self._eager_routing: Any = None
        self.fields = tuple(self._as_uno(field) for field in self.fields)
        return backend

    def _as_uno(self, field: Field) -> Field:
        if field.name == "seq_lens_cpu":
            return replace(field, repeats="widened_lens", source=_MIRROR)
        return field

    def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
        forget_input_buffers()
        driver = UnoRunnerDriver(self._model_runner, self._config, graphs, self.remember)
        self._worker = self._open_worker(driver)
        return driver

    def _open_worker(self, driver: UnoRunnerDriver) -> Any:
        """The engine's, without what its constructor asks a server for."""
        runner = self._model_runner
        runner.decode_cuda_graph_runner = driver._engine
        worker = object.__new__(engine_module(_WORKER).UnoWorkerV2)
        width = self._config.draft_tokens
        vars(worker).update(
            _target_worker=Stub(forward_batch_generation=self._forward, model_runner=runner),
            forward_width=width,
            lora_manager=self._manager,
            model_runner=runner,
            num_speculative_proposals=width - 1,
            tree_mode=False,
            uno_lora_id=runner.uno_lora_id,
        )
        return worker

    def _translate(self, batch: Batch) -> Any:
        return self._block(batch, drafts=self._drafts)

    def _block(self, batch: Batch, *, drafts: bool) -> Any:
        """One forward of the worker's step, by its own code."""
        kinds, device = engine_module(_SPEC).SpecInputType, self._model_runner.device
        lens = batch.cached_lens
        # Both of the worker's forwards come to this.
        bound = mirror(lens + self._config.draft_tokens)
        return self._worker._make_forward_batch(
            spec_input_type=kinds.UNO_DRAFT if drafts else kinds.UNO_VERIFY,
            input_ids=torch.tensor(batch.input_ids, device=device),
            positions=torch.tensor(batch.positions, device=device),
            out_cache_loc=torch.tensor(batch.slot_mapping, device=device),
            prefix_lens=torch.tensor(lens, device=device),
            seq_lens_cpu=bound,
            seq_lens_sum=int(bound.sum()),
            req_pool_indices=torch.tensor(batch.req_pool_indices, device=device),
        )

    def _run_block(self, given: Any, forward: Callable[[Any], Any]) -> None:
        """The worker around one forward: it says which tokens have the adapter."""
        kinds = engine_module(_SPEC).SpecInputType
        self._each = forward
        drafts = given.spec_info.spec_input_type == kinds.UNO_DRAFT
        run = self._worker._run_draft_block if drafts else self._worker._run_target_block
        run(given, need_top1=False)

    def _forward(self, *, forward_batch: Any, **_: Any) -> Any:
        """In the place of the target worker's."""
        found = self._each(forward_batch)
        tokens = len(forward_batch.input_ids)
        return Stub(logits_output=found or Stub(next_token_logits=torch.empty(tokens, 1)))

    def prepare_replay(self, batch: Batch) -> None:
        self._write_past(batch)
        with self.engine_runs(batch):
            self._use()
            other = self._block(batch, drafts=not self._drafts)
            if self.runner.can_run(other):
                self._run_block(other, self.runner.prepare)
                self.runner.replay()
            self._last_batch = self._given(batch)
            self.ran_eagerly = not self.runner.can_run(self._last_batch)
            if self.ran_eagerly:
                self._forward_eagerly()
            else:
                self._run_block(self._last_batch, self.runner.prepare)

    def _forward_eagerly(self) -> None:
        """As a server without graphs does, which then routes tokens itself."""
        runner = self._model_runner
        runner.decode_cuda_graph_runner = None
        try:
            self._run_block(self._last_batch, self._eager_block)
        finally:
            runner.decode_cuda_graph_runner = self.runner._engine

    def _eager_block(self, given: Any) -> Any:
        self._eager_routing = self._manager.lora_backend.batch_info
        self._prepare_eagerly()
        assert self._attention is not None
        with in_forward_context(self.backend, given):
            self._outputs = self._attention.forward(given.input_ids, given.positions, given)
        return self._outputs

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        if config.drafted_blocks == "none":
            return ()
        routed = Field(
            "lora_ranks_of_tokens", "tokens", "nothing", common.FREE, source=_ROUTED,
            repeats="adapter_ranks",
        )  # fmt: skip
        return (routed,)

    def _read(self, *, in_graph: bool) -> Any:
        if not self._drafts:
            return None
        return self.runner.routing(self.runner.padded_bs) if in_graph else self._eager_routing

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        return TritonSession._metadata_tensors(self, size)

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super()._used(lens)
        known = {field.name for field in self.fields}
        return {name: tensor for name, tensor in found.items() if name in known}
