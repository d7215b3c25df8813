"""Metadata target `sglang-flashinfer-draft`: EAGLE's drafts on FlashInfer's backends, no kernels.

The release's own draft runner grows drafts on one backend for each step but the last; a Triton
kernel of its own writes the indices of all of them. The draft model computes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.flashinfer_wrappers import install_wrappers
from fuzzgraph.targets.sglang.decode_session import keeps_ladder, load_once
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DRAFT, RunnerKind
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftSession, DraftTarget
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.workspaces import forget_workspaces, keep_workspaces_small
from fuzzgraph.world import RESERVED_SLOT, Batch

__all__ = ["StepsSession", "StepsTarget"]

_BACKEND = "sglang.srt.layers.attention.flashinfer_backend"
_STEPS = (
    "sglang generate_draft_decode_kv_indices: for each branch its row's past and the slots that "
    "its steps so far wrote; a padded row lies in the pool's padding row"
)


class StepsTarget(DraftTarget):
    """EAGLE's draft runner on FlashInfer."""

    def __init__(self) -> None:
        super().__init__("sglang-flashinfer-draft", DRAFT, "draft", max_topk=4)
        self.about = "FlashInfer's metadata of each draft step on EAGLE's draft runner; no outputs"
        self.capabilities = self.capabilities.replace(seq_len_fill_values=(1,), min_spec_steps=2)

    def _refused(self, config: EngineConfig) -> str | None:
        if config.spec_steps < 2:
            return "spec_steps=1: the last step of a draft has no backend"
        return super()._refused(config) or keeps_ladder(config)

    def _session(self, config: EngineConfig, graphs: GraphEngine) -> StepsSession:
        return StepsSession(config, graphs, self._kind)

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        keep_workspaces_small()
        super().load()
        load_once(_BACKEND)


def _watched(base: Any) -> type:
    """The engine's backend, which says when it is about to prepare a replay."""

    class Watched(base):  # type: ignore[misc]
        on_look: Callable[[], None] = staticmethod(lambda: None)

        def init_forward_metadata_replay_cuda_graph(self, *args: Any, **named: Any) -> None:
            self.on_look()
            super().init_forward_metadata_replay_cuda_graph(*args, **named)

        def init_forward_metadata_out_graph(self, *args: Any, **named: Any) -> None:
            self.on_look()
            super().init_forward_metadata_out_graph(*args, **named)

    return Watched


class StepsSession(DraftSession):
    """One draft runner and its backends, one for each step but the last."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: RunnerKind) -> None:
        self._read: dict[int, dict[str, torch.Tensor]] = {}
        self._size: int | None = None
        with cuda_on_cpu():
            super().__init__(config, graphs, kind)
        for step in range(config.spec_steps - 1):
            name = f"step{step}_kv"
            self.fields += (
                Field(f"{name}_indptr", "indptr", "offset", PaddingRule("reserved"), source=_STEPS,
                      repeats=f"draft_lens:{step}"),
                Field(f"{name}_indices", "indices", "slot", PaddingRule("reserved", RESERVED_SLOT),
                      source=_STEPS),
            )  # fmt: skip

    def _open_backend(self, runner: ModelRunner) -> Any:
        module = engine_module(_BACKEND)
        forget_workspaces(module)
        install_wrappers()
        backend = _watched(module.FlashInferMultiStepDraftBackend)
        return backend(runner, self._config.spec_topk, self._config.spec_steps)

    @contextlib.contextmanager
    def _with_drafts(self, batch: Batch) -> Iterator[None]:
        """While the engine's code runs: the worker has put the drafts' slots behind each past."""
        table = self._model_runner.req_to_token_pool.req_to_token
        rows = torch.tensor(batch.req_pool_indices)[:, None]
        each = self._config.spec_topk * self._config.spec_steps
        drafts = torch.tensor(batch.slot_mapping, dtype=table.dtype).view(-1, each)
        columns = torch.tensor(batch.seq_lens)[:, None] + torch.arange(each)
        before = table[rows, columns]
        table[rows, columns] = drafts
        try:
            with cuda_on_cpu():
                yield
        finally:
            table[rows, columns] = before

    def capture(self) -> None:
        with cuda_on_cpu():
            super().capture()

    def _remember(self, padded_bs: int) -> None:
        self._size = padded_bs
        super()._remember(padded_bs)
        self._read[padded_bs] = self._metadata_tensors()

    def prepare_replay(self, batch: Batch) -> None:
        with self._with_drafts(batch):
            super().prepare_replay(batch)

    def replay(self, batch: Batch) -> None:
        with self._with_drafts(batch):
            super().replay(batch)
        self._size = None if self._eager else self.runner.padded_bs

    def eager(self, batch: Batch) -> None:
        with self._with_drafts(batch):
            super().eager(batch)
        self._size = None

    def _wrappers(self) -> list[Any]:
        backends = self.backend.attn_backends
        if self._size is None:
            return [one.forward_metadata.decode_wrappers[0] for one in backends]
        return [one.decode_cuda_graph_metadata[self._size][0] for one in backends]

    def _metadata_tensors(self) -> dict[str, torch.Tensor]:
        return {
            f"step{step}_{name}": wrapper.buffer(f"paged_{name}")
            for step, wrapper in enumerate(self._wrappers())
            for name in ("kv_indptr", "kv_indices")
        }

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the kernels of each step read: below the last offset."""
        held = self._metadata_tensors() if self._size is None else self._read[self._size]
        used = {name: tensor.clone() for name, tensor in held.items()}
        for step, wrapper in enumerate(self._wrappers()):
            name = f"step{step}_kv_indices"
            used[name] = used[name][: used[f"step{step}_kv_indptr"][-1]]
            used[f"step{step}_plan"] = torch.tensor(wrapper.planned["kv_indptr"])
        return used
