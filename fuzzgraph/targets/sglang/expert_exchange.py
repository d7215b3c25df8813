"""What dispatchers of experts and DeepEP's memory are told before a step, beside other ranks.

Servers with DeepEP exchange tokens between experts by kernels of two kinds: those for prompts, and
those of low latency, which graphs hold. The latter need memory that the former leave dirty, so the
engine keeps in mind which kind ran last, and cleans between them. A graph's kernels are chosen at
its capture; before a replay the runner's adapter has to say which they are. Without a graph the
dispatcher chooses by a flag of the process, which a batch has to set. Real here are the adapter,
`DeepEPBuffer` and the flag; stood in for is the memory, which says whether it is dirty. Before each
step the harness leaves them as what may run before it does: prompts; before a draft-extend, whose
adapter says that it takes kernels for prompts, a verify. Sources: sglang
runner_utils/deepep_adapter.py, token_dispatcher/deepep.py (DeepEPBuffer, DeepEPDispatcher
`_get_impl`), forward_batch_info.py (prepare_mlp_sync_batch); DeepEP's README on
`clean_low_latency_buffer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.release import engine_module, is_before
from fuzzgraph.world import Batch

_DISPATCHER = "sglang.srt.layers.moe.token_dispatcher.deepep"
_FLAG = "sglang.srt.layers.dp_attention"
DEEPEP: Mapping[str, Any] = MappingProxyType({"moe_a2a_backend": "deepep"})
"""Arguments of such a server."""
ADAPTED_FROM = 0, 5, 16
"""The first release whose adapter is driven: before, a runner's replay asks it, and here graphs are
replayed by themselves (sglang 0.5.13 cuda_graph_runner.py, replay)."""
LOW_LATENCY = "low_latency_exchange"
DIRTY = "dirty_exchange_memory"
_EXTENDS = "dispatched_as_prompts"
_ADAPTER = "sglang deepep_adapter.py: a replay sets the mode of its capture"
_CLEANED = "sglang DeepEPBuffer.set_dispatch_mode_as_low_latency: cleans behind prompts"
_SET = "sglang prepare_mlp_sync_batch: as the ranks agreed; dispatchers choose kernels by it"


class _Memory:
    """The memory of DeepEP's `Buffer`, as far as `DeepEPBuffer` asks for it."""

    low_latency_mode = True

    def __init__(self) -> None:
        self.dirty = False

    def clean_low_latency_buffer(self, most_tokens: int, columns: int, experts: int) -> None:
        self.dirty = False


class ExpertExchange:
    """How a session's steps find what is kept of exchanges, and leave it.

    Args:
        config: of several data-parallel ranks; with one rank there is no flag.
        deepep: whether the server has it; its memory and mode are shown from 0.5.16 on.
    """

    def __init__(self, config: EngineConfig, *, deepep: bool) -> None:
        self._ranks = config.dp_size > 1
        self._has_memory = deepep and not is_before(ADAPTED_FROM)
        self._extends_drafts = "draft_extend" in config.modes
        self._memory: Any = _Memory()
        self._has_prompts = True
        self.tells = True
        """Whether the forward that runs now is a server's own, without a graph."""
        self._extends: bool | None = None

    def use(self, memory: Any) -> None:
        """Take the memory of a server that exchanges prompts by kernels of low latency as well, so
        that nothing dirties it (`--deepep-mode low_latency`).

        Args:
            memory: as the engine has it; `clean_low_latency_buffer` is called on it.
        """
        self._memory, self._has_prompts = memory, False

    @property
    def fields(self) -> tuple[Field, ...]:
        """What is shown, for the contract oracle."""
        flag = fields.value(_EXTENDS, repeats="computes_prompts", source=_SET)
        kept = (
            _at_capture(LOW_LATENCY, int(not self._extends_drafts), "exchanges_at_once", _ADAPTER),
            _at_capture(DIRTY, 0, "nothing_left", _CLEANED),
        )
        return (*((flag,) if self._ranks else ()), *(kept if self._has_memory else ()))

    def begin(self) -> None:
        """As a server that captures its graphs has it: nothing was exchanged yet."""
        if self._has_memory:
            self._memory.dirty = False
            self._keep(buffer=self._memory, dispatch_mode=None)

    def leave_earlier(self, batch: Batch) -> None:
        """As forwards of another kind before this step leave it."""
        self._extends, self.tells = None, True
        if self._ranks:
            engine_module(_FLAG).set_is_extend_in_batch(not batch.others_prefill)
        if self._has_memory:
            self._keep(buffer=self._memory)
            kept = engine_module(_DISPATCHER).DeepEPBuffer
            if self._extends_drafts or not self._has_prompts:
                kept.set_dispatch_mode_as_low_latency()
            else:
                kept.set_dispatch_mode_as_normal()
            self._memory.dirty = self._has_prompts and not self._extends_drafts

    def note_flag(self) -> None:
        """Take down what dispatchers of a forward that begins now choose kernels by."""
        if self._ranks and self.tells:
            self._extends = bool(engine_module(_FLAG).get_is_extend_in_batch())

    def of_graph(self) -> dict[str, torch.Tensor]:
        """What kernels in a graph find, by the names of `fields`."""
        if not self._has_memory:
            return {}
        module = engine_module(_DISPATCHER)
        at_once = self._kept("dispatch_mode") == module.DeepEPDispatchMode.LOW_LATENCY
        return {LOW_LATENCY: _number(at_once), DIRTY: _number(self._memory.dirty)}

    def of_forward(self) -> dict[str, torch.Tensor]:
        """What dispatchers of the last forward without a graph chose kernels by."""
        return {} if self._extends is None else {_EXTENDS: _number(self._extends)}

    def _keep(self, **values: Any) -> None:
        holder, prefix = _holder()
        for name, value in values.items():
            setattr(holder, f"{prefix}{name}", value)

    def _kept(self, name: str) -> Any:
        holder, prefix = _holder()
        return getattr(holder, f"{prefix}{name}")


def _holder() -> tuple[Any, str]:
    """What keeps the memory and its mode in this release, and how its names begin."""
    kind = engine_module(_DISPATCHER).DeepEPBuffer
    return (kind._state(), "") if hasattr(kind, "_state") else (kind, "_")


def _at_capture(name: str, value: int, repeats: str, source: str) -> Field:
    """A number that a graph finds at its capture as at each replay."""
    same = PaddingRule("fill", value)
    return Field(name, "scalar", "nothing", same, source=source, repeats=repeats)


def _number(value: bool) -> torch.Tensor:
    return torch.tensor([int(value)])
