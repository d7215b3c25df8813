"""One prefill runner with its captured graphs, judged by outputs, inputs and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field, Observation, PaddingRule
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.targets.offline.session import RunnerSession
from fuzzgraph.targets.sglang.attention_model import in_forward_context
from fuzzgraph.targets.sglang.backends.triton import CORES, TRITON_BACKEND
from fuzzgraph.targets.sglang.forward_batch.attn_tp import load_ranks
from fuzzgraph.targets.sglang.forward_batch.prefill import prefill_batch
from fuzzgraph.targets.sglang.prefill_model import PrefillModel
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import (
    PrefillKind,
    PrefillRunnerDriver,
)
from fuzzgraph.targets.sglang.stubs.model_runner import model_runner
from fuzzgraph.world import RESERVED_SLOT, Batch

__all__ = ["PrefillSession"]

_REGISTRY = "sglang cuda_graph_buffer_registry.py build_prefill_registry, before it replay_prepare"
_ZEROED = f"{_REGISTRY}: the tail is processed by the graph and reset to 0"
_LIVE = "sglang prefill runners: requests are not padded; the model gets the batch's own"
_SUMS = "sglang triton_backend.py: cumsum over the rows at every prefill; entry 0 from init"
_PREFIX = "sglang triton_backend.py: the slots that a request had cached before"
_TOO_MUCH = "sglang PrefillCudaGraphRunner.can_run_graph: at most {} times the tokens are padded"
_ONE_REQUEST = "sglang 0.5.11 BreakableCudaGraphRunner.can_run: no graph for several requests"

_BY_TOKEN = ("input_ids", "positions", "out_cache_loc")
_BY_REQUEST = {
    "req_pool_indices": "req_pool_indices",
    "seq_lens": "seq_lens",
    "extend_seq_lens": "new_lens",
    "extend_prefix_lens": "cached_lens",
}
"""What the forward batch says of each request, and what of the logical batch it repeats."""

_COUNT = "num_token_non_padded"
_SHARE = f"sglang cuda_graph_buffer_registry.py build_prefill_registry: {_COUNT} by the bucket"

_FREE, _NONE_PADDED = PaddingRule("free"), PaddingRule("fill", 0)


def _fields() -> tuple[Field, ...]:
    selects: Mapping[str, Any] = {"req_pool_indices": "row"}
    return (
        Field("input_ids", "tokens", "nothing", _FREE, source=_ZEROED),
        Field("positions", "tokens", "nothing", _FREE, source=_ZEROED),
        Field("out_cache_loc", "tokens", "slot", PaddingRule("reserved", RESERVED_SLOT),
              source=_ZEROED),
        *(
            Field(name, "requests", selects.get(name, "length"), _NONE_PADDED, source=_LIVE,
                  repeats=repeats)
            for name, repeats in _BY_REQUEST.items()
        ),
        Field(_COUNT, "scalar", "nothing", _FREE, source=_SHARE),
        Field("qo_indptr", "indptr", "offset", _FREE, source=_SUMS, repeats="new_lens"),
        Field("kv_indptr", "indptr", "offset", _FREE, source=_SUMS, repeats="cached_lens"),
        Field("kv_indices", "indices", "slot", PaddingRule("reserved", RESERVED_SLOT),
              source=_PREFIX),
    )  # fmt: skip


class PrefillSession(RunnerSession):
    """An opened runner on Triton attention, with one layer."""

    fields = _fields()
    runner: PrefillRunnerDriver

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: PrefillKind) -> None:
        self._config = config
        self._frozen: dict[int, dict[str, int]] = {}
        self._at_capture: dict[int, torch.Tensor] = {}
        self._eager = False
        self._declined = ""
        self._last_batch: Any = None
        self._handed_over = 0
        """Tokens of the batch that the graph runner is given; it cuts off what it adds itself."""
        self._outputs: Any = None
        if config.attn_tp_size > 1:
            load_ranks()
        runner = model_runner(config, graphs.device, backend="triton", prefill=kind.name)
        self._model_runner = runner
        runner.model = self._model = PrefillModel(config, graphs.device)
        module = engine_module(TRITON_BACKEND)
        module.get_device_core_count = lambda *_: CORES
        runner.attn_backend = self.backend = module.TritonAttnBackend(runner)
        self.runner = PrefillRunnerDriver(kind, runner, config, graphs, self._remember)
        pool = runner.token_to_kv_pool
        self.pools = Pools(
            req_to_token=runner.req_to_token_pool.req_to_token,
            kv_planes=(pool.k_buffer[0], pool.v_buffer[0]),
        )

    @property
    def roots(self) -> Mapping[str, object]:
        """The backend, the runner's buffers, the pools; engine configuration is left out."""
        return {
            "backend": self.backend,
            "buffers": self._static(),
            "requests": self.runner.requests,
            "model": self._model.model.attention,
            "req_to_token_pool": self._model_runner.req_to_token_pool,
            "kv_pool": self._model_runner.token_to_kv_pool,
        }

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return () if mode == "idle" else ("attention",)

    def _remember(self, tokens: int) -> None:
        """Addresses that the graph over so many tokens has frozen, and the count it has seen."""
        self._frozen[tokens] = {name: each.data_ptr() for name, each in self._static().items()}
        if (count := self.runner.find(_COUNT)) is not None:
            self._at_capture[tokens] = count.clone()

    def _static(self) -> dict[str, torch.Tensor]:
        return {name: self.runner.tokens(name) for name in _BY_TOKEN}

    def prepare_replay(self, batch: Batch) -> None:
        """The engine pads and prepares inside of its replay: here it decides on the graph."""
        self._use()
        self._eager, self._declined = True, ""
        if not batch.raw_bs:  # without requests there is no prefill, on the one group of ranks
            return
        self._translate(batch)
        self._eager = not self.runner.can_run(self._last_batch)
        self._declined = self._rule_against(batch) if self._eager else ""

    def _translate(self, batch: Batch) -> None:
        """The engine's batch, which its model runner may have padded for the ranks."""
        self._last_batch = prefill_batch(batch, self._model_runner)
        self._handed_over = len(self._last_batch.input_ids)

    def _rule_against(self, batch: Batch) -> str:
        """The engine's rule by which this batch takes no graph."""
        if self.runner.one_request and batch.raw_bs > 1:
            return _ONE_REQUEST
        most, tokens = self.runner.most_padding, len(self._last_batch.input_ids)
        fitting = [size for size in self.runner.sizes if size >= tokens]
        if most and fitting and fitting[0] > most * tokens:
            return _TOO_MUCH.format(most)
        return ""

    def replay(self, batch: Batch) -> None:
        if not batch.raw_bs:
            return
        if self._eager:
            self._run_eagerly()
            return
        with in_forward_context(self.backend, self._last_batch):  # as the engine's model runner
            self._outputs = self.runner.replay(self._last_batch)

    def eager(self, batch: Batch) -> None:
        self._use()
        self._eager, self._declined = True, ""
        if not batch.raw_bs:
            return
        self._translate(batch)
        self._run_eagerly()

    def _run_eagerly(self) -> None:
        given = self._last_batch
        with in_forward_context(self.backend, given):
            self.backend.init_forward_metadata(given)
            self._outputs = self._model.forward(given.input_ids, given.positions, given)

    def observe(self, batch: Batch) -> Observation:
        """What the engine hands out, the buffers its graphs read and the metadata of attention."""
        if not batch.raw_bs:
            return Observation(0, 0, 0, 0)
        given = self._last_batch if self._eager else self.runner.prepared
        tokens = len(given.input_ids)
        seen = Observation(batch.raw_bs, batch.raw_bs, batch.num_tokens, tokens)
        seen.declined = self._declined
        seen.outputs = {"attention": self._handed_out()}
        seen.shown_tokens = self._handed_over
        if not self._eager:
            seen.metadata.update(
                {name: buffer[:tokens].clone() for name, buffer in self._static().items()}
            )
            if (count := self.runner.find(_COUNT)) is not None:
                seen.metadata[_COUNT] = count.clone()
        seen.metadata.update({name: getattr(given, name).clone() for name in _BY_REQUEST})
        seen.metadata.update(self._attention_metadata())
        seen.plan = {"max_extend_len": int(self.backend.forward_metadata.max_extend_len)}
        return seen

    def _handed_out(self) -> torch.Tensor:
        """[tokens, heads, v_head_dim]; the engine has cut off what it padded to a bucket.

        What it padded to a multiple of the ranks stays: it has logits for each request alone.
        """
        heads, columns = self._config.num_q_heads, self._config.v_head_dim
        rows: torch.Tensor = self._outputs.next_token_logits
        return rows.view(-1, heads, columns).clone()

    def _attention_metadata(self) -> dict[str, torch.Tensor]:
        metadata = self.backend.forward_metadata
        found = {name: getattr(metadata, name) for name in ("qo_indptr", "kv_indptr")}
        found["qo_indptr"] = found["qo_indptr"].int()  # int64 by design, the kernels take either
        found["kv_indices"] = metadata.kv_indices[: found["kv_indptr"][-1]]
        return {name: tensor.clone() for name, tensor in found.items()}

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """For the size replayed last (at first the largest); none after an eager step."""
        if self._eager:
            return {}
        prepared = self.runner.prepared
        size = len(prepared.input_ids) if prepared else self.runner.sizes[-1]
        frozen = self._frozen.get(size, {})
        static = self._static()
        return {name: (static[name], address) for name, address in frozen.items()}

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        """The count of live tokens, where this release has one."""
        if self._eager:
            return {}
        seen = self._at_capture.get(len(self.runner.prepared.input_ids))
        return {} if seen is None else {_COUNT: seen}
