"""The engine's own graph runners for prefills, opened without a server, in all of their shapes.

Up to 0.5.13 the piecewise and, from 0.5.11 on, the breakable runner are classes of their own; since
0.5.14 one runner has either as its backend, the piecewise one until 0.5.21. All capture in their
constructors and prepare a replay inside of it. Padding, buffers, sizes, order, contexts and the
breaks themselves are the engine's. Put in its place are the device (`prefill_device`), its graphs
(`offline.cuda_graph`) and torch's compiler (`piecewise_compiler`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.runners.base import execute, takes_graph
from fuzzgraph.targets.sglang.runners.capture import forget_input_buffers
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.prefill_device import PrefillDevice
from fuzzgraph.targets.sglang.stubs.tp_groups import Group

_PLUGGABLE = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner"
_BACKENDS = "sglang.srt.model_executor.runner_backend.utils"


_FULL_SLOTS = "full_prefill_max_req"
"""Setting that came with full graphs for prefills; the backend for decodes is older."""


@dataclass(frozen=True, slots=True)
class PrefillKind:
    """Where a runner of the engine is found."""

    name: str
    """As the engine's configuration calls it."""
    module: str
    """Of the runner up to 0.5.13."""
    runner: str
    backend: str
    """Class of the backend from 0.5.14 on."""


PIECEWISE = PrefillKind(
    "tc_piecewise",
    "sglang.srt.model_executor.piecewise_cuda_graph_runner",
    "PiecewiseCudaGraphRunner",
    "TcPiecewiseCudaGraphBackend",
)
BREAKABLE = PrefillKind(
    "breakable",
    "sglang.srt.model_executor.breakable_cuda_graph_runner",
    "BreakableCudaGraphRunner",
    "BreakableCudaGraphBackend",
)
FULL = PrefillKind("full", "", "", "FullCudaGraphBackend")


def prefill_module(kind: PrefillKind) -> str | None:
    """The module of this release that holds the runner; None where there are no such graphs."""
    if kind.module and has_module(kind.module):
        return kind.module
    if has_module(_PLUGGABLE) and hasattr(engine_module(_BACKENDS), kind.backend):
        return _PLUGGABLE if kind is not FULL or _FULL_SLOTS in _phase_settings() else None
    return None


def _phase_settings() -> tuple[str, ...]:
    """What a server says of the graphs of one phase, in this release."""
    phase = engine_module("sglang.srt.model_executor.cuda_graph_config").PhaseConfig
    return tuple(phase.__dataclass_fields__)


class PrefillRunnerDriver:
    """A prefill runner of this release on `runner.attn_backend`; nothing captured yet.

    Args:
        kind: which graphs.
        runner: has its model and its attention backend.
        on_capture: called with each token count as soon as its graph is captured.
        decides: whether the model decides by what it reads on the host how it computes; graphs keep
            what was decided at their capture.
    """

    def __init__(
        self,
        kind: PrefillKind,
        runner: ModelRunner,
        config: EngineConfig,
        graphs: GraphEngine,
        on_capture: Callable[[int], None],
        decides: bool = False,
    ) -> None:
        forget_input_buffers()
        _describe_model(runner, config)
        self._runner = runner
        self._module = engine_module(prefill_module(kind) or kind.module)
        self._class = kind.runner if kind.module == self._module.__name__ else None
        self._segments = CudaGraphs(graphs, "prefill", prepares=decides, shared=True)
        self._on_capture = on_capture
        self._device = PrefillDevice(
            self._module,
            sizes=config.capture_tokens,
            segments=self._segments,
            on_capture=on_capture,
            splits=kind is PIECEWISE,
        )
        self._engine: Any = None
        self.prepared: Any = None
        """The padded forward batch that the last replay ran on."""

    def capture(self) -> None:
        """The engine's constructor: buffers, warm-up and all graphs, largest first."""
        base = getattr(self._module, self._class or "PrefillCudaGraphRunner")
        with self._device.capturing():
            self._engine = _watched(base, self)(self._runner)

    def begin(self, tokens: int) -> None:
        self._segments.begin_forward(tokens)

    def end(self, tokens: int) -> None:
        if not self._device.splits:
            self._on_capture(tokens)

    def tokens(self, name: str) -> torch.Tensor:
        """A static input of the tokens, whole; releases differ in who holds it."""
        registry = getattr(self._engine, "buffer_registry", None)
        if registry is not None:
            held: torch.Tensor = registry.get_slot(name).buffer
            return held
        holder = getattr(self._engine, "buffers", self._engine)  # in 0.5.9 the runner itself
        found: torch.Tensor = getattr(holder, name)
        return found

    def find(self, name: str) -> torch.Tensor | None:
        """A static input that only some releases and configurations have."""
        registry = getattr(self._engine, "buffer_registry", None)
        if registry is None or not registry.has_slot(name):
            return None
        found: torch.Tensor = registry.get_slot(name).buffer
        return found

    @property
    def sizes(self) -> Sequence[int]:
        """Token counts that have graphs, ascending; ranks cannot share every count."""
        captured: Sequence[int] = self._engine.capture_num_tokens
        return captured

    @property
    def one_request(self) -> bool:
        """Whether graphs hold what surrounds the body too, as those of 0.5.11: one request's."""
        return self._class == BREAKABLE.runner and not hasattr(self._engine, "layer_model")

    @property
    def requests(self) -> Mapping[str, torch.Tensor]:
        """Static inputs of the requests, which breakable graphs have from 0.5.14 on."""
        found: Mapping[str, torch.Tensor] = (
            getattr(self._engine, "_prefill_static_buffers", None) or {}
        )
        return found

    @property
    def prefix_chunks(self) -> Any:
        """What graphs read of chunks of what is cached; None where they hold none."""
        return getattr(self._engine, "_prefix_capture_buffers", None)

    @property
    def makes_logprobs(self) -> bool:
        """Whether a batch whose clients ask for logprobs of their prompts takes a graph."""
        return hasattr(self._engine, "_uses_eager_prefill_tail")

    @property
    def most_padding(self) -> int:
        """Times its tokens that a batch may be padded to; 0 where the engine has no such bound."""
        return int(getattr(self._module, "_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR", 0))

    def can_replay(self, tokens: int) -> bool:
        """Whether a rank with so many tokens of one prompt takes a graph, as the engine says it
        where ranks agree on one (dp_attn.py, _local_prefill_cuda_graph_vote)."""
        vote = call_with_known(
            self._engine.can_replay_locally,
            batch_size=1,
            num_tokens=tokens,
            input_embeds=None,
            replace_embeds=None,
            prefix_lens=None,
            is_target_verify=False,
            capture_hidden_mode=None,
            return_logprob=False,
            contains_mm_inputs=False,
            lora_ineligible=False,
            is_mixed=False,
            batch_max_context_len=tokens,
        )
        return bool(vote)

    def can_run(self, forward_batch: Any) -> bool:
        """The engine's own answer; where it is no, the engine goes eager."""
        return takes_graph(self._engine, forward_batch)

    def replay(self, forward_batch: Any) -> Any:
        """Pads, replays and gives what the engine hands to its caller."""
        with self._device.replaying():
            return execute(self._engine, forward_batch)


def _describe_model(runner: ModelRunner, config: EngineConfig) -> None:
    """What a prefill runner asks of its model runner beyond what a decode runner does."""
    attended = [layer.self_attn for layer in runner.model.model.layers]
    layers = [each.attn for each in attended]
    described: dict[str, Any] = {
        "attention_layers": layers,
        "moe_layers": [None] * len(layers),
        "moe_fusions": [None] * len(layers),
        "mha_companion_layers": [each.attn_mha for each in attended],
        "dsa_indexers": None,
        "is_multimodal": config.image_len > 0,
        "is_generation": True,
        "graph_shared_output": None,
        "pp_group": Stub(is_first_rank=True, is_last_rank=True, world_size=1),
        "pp_size": 1,
        "tp_group": Group(config.attn_tp_size, config.attn_tp_rank),
        "attn_tp_sequence_sharded": lambda tokens: config.attn_tp_size > 1,
        "prepare_dummy_forward_batch": lambda batch: batch,
        "_pp_kwargs": lambda proxy: {},
    }
    for name, value in described.items():
        setattr(runner, name, value)


def _watched(base: Any, seen: PrefillRunnerDriver) -> type:
    """The engine's runner, telling which size it captures and what it has prepared."""
    one_size = next(
        name
        for name in ("capture_one_shape", "_capture_one", "capture_one_batch_size")
        if hasattr(base, name)
    )
    prepare = "load_batch" if hasattr(base, "load_batch") else "replay_prepare"

    def capture_one(self: Any, tokens: int, *args: Any, **kwargs: Any) -> Any:
        seen._engine = self
        seen.begin(tokens)
        captured = getattr(base, one_size)(self, tokens, *args, **kwargs)
        seen.end(tokens)
        return captured

    def prepare_one(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = getattr(base, prepare)(self, *args, **kwargs)
        seen.prepared = prepared[0] if isinstance(prepared, tuple) else prepared
        return prepared

    return type(base.__name__, (base,), {one_size: capture_one, prepare: prepare_one})
