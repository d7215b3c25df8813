"""One decode runner with its captured graphs, judged by its inputs and by its backend's metadata.

Subclasses say which attention backend it runs on and what that backend's metadata is.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.targets.offline.session import RunnerSession
from fuzzgraph.targets.sglang.forward_batch.decode import forward_batch
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.decode import DecodeRunner, open_decode_runner, runner_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, model_runner
from fuzzgraph.targets.sglang.stubs.server_args import context_len
from fuzzgraph.world import Batch

__all__ = ["BY_TOKEN", "DecodeSession", "captures_drafts", "keeps_ladder", "load_once"]

BY_TOKEN = ("input_ids", "positions", "out_cache_loc", "mrope_positions")

_NEEDS_ENCODERS = "sglang decode runner, can_run: every row of a graph has an encoder"

_loaded: set[str] = set()


def load_once(*modules: str) -> None:
    """Imports modules of the release, and takes their objects out of the collector's passes.

    The engine collects before every capture; over the half million objects of its own imports that
    takes longer than all the rest.
    """
    if _loaded.issuperset(modules):
        return
    # Tensors that imports make belong to the process, not to the session that came first.
    with _disable_current_modes():
        for name in (*modules, runner_module(), "sglang.srt.speculative.eagle_info"):
            engine_module(name)
    gc.collect()
    gc.freeze()
    _loaded.update(modules)


def keeps_ladder(config: EngineConfig) -> str | None:
    """Why the engine would not capture the case's largest size; None where it does.

    It drops sizes that ranks cannot share, or that no batch can reach: the pool, rounded up to a
    multiple of the ranks (sglang get_batch_sizes_to_capture).
    """
    ranks, largest = config.attn_tp_size, config.capture_bs[-1]
    if largest % ranks or largest > -(-config.req_pool_size // ranks) * ranks:
        return f"attn_tp_size={ranks} keeps no graph of {largest} rows"
    return None


def captures_drafts(config: EngineConfig) -> str | None:
    """Why the engine could not capture its verify graphs; None where it can.

    The rows it captures hold at most `draft_tokens` of past (sglang backends,
    get_cuda_graph_seq_len_fill_value) and check as many. No server has a context that short.
    """
    context = context_len(config)
    if "target_verify" in config.modes and context < 2 * config.draft_tokens:
        return f"a context of {context} cannot hold a captured row's drafts"
    return None


class DecodeSession(RunnerSession):
    """An opened runner. `inputs` are the names of its static buffers that are judged."""

    fields: tuple[Field, ...]
    inputs: Sequence[str]
    runner: DecodeRunner

    def __init__(
        self,
        config: EngineConfig,
        graphs: GraphEngine,
        *,
        backend: str,
        drafts: bool = False,
        model: Any = None,
    ) -> None:
        self._config = config
        self._frozen: dict[int, dict[str, int]] = {}
        self._at_capture: dict[int, dict[str, torch.Tensor]] = {}
        self._eager = False
        self._last_batch: Any = None
        self._outputs: Any = None
        self._verifies = config.modes == ("target_verify",)
        self._model_runner = model_runner(
            config, graphs.device, backend=backend, speculative=self._verifies, drafts=drafts
        )
        self._model_runner.model = model
        self.backend = self._open_backend(self._model_runner)
        self._model_runner.attn_backend = self.backend
        self.runner = self._open_runner(graphs)
        self.pools = Pools(req_to_token=self._model_runner.req_to_token_pool.req_to_token)

    # What subclasses answer

    def _open_backend(self, runner: ModelRunner) -> Any:
        raise NotImplementedError

    def _open_runner(self, graphs: GraphEngine) -> DecodeRunner:
        return open_decode_runner(self._model_runner, self._config, graphs, self._remember)

    def _translate(self, batch: Batch) -> Any:
        """The engine's own batch."""
        return forward_batch(batch, self._model_runner)

    def _tokens(self, batch: Batch) -> int:
        """Live entries on the token axis."""
        return batch.num_tokens

    def _padded_tokens(self, padded_bs: int) -> int:
        """Entries on the token axis that a graph of this size covers."""
        return padded_bs * self.runner.width

    def _metadata_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors of the backend's current metadata, whole, by their field's name."""
        return {}

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies of what a kernel reads of the metadata.

        Args:
            lens: [rows] that the graph covers, padded ones included.
        """
        return {name: tensor.clone() for name, tensor in self._metadata_tensors().items()}

    def _plan(self) -> dict[str, object]:
        return {}

    def _shown(self) -> dict[str, torch.Tensor]:
        """Copies of what the last run produced, padded rows included."""
        return {}

    def _types(self) -> dict[str, str]:
        return {}

    # The session

    @property
    def roots(self) -> Mapping[str, object]:
        """The backend, the runner's buffers, the pools; engine configuration is left out."""
        return {
            "backend": self.backend,
            "buffers": self.runner.buffers,
            "req_to_token_pool": self._model_runner.req_to_token_pool,
            "kv_pool": self._model_runner.token_to_kv_pool,
        }

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return ()

    def _remember(self, padded_bs: int) -> None:
        """What the graph of this size has frozen: addresses, and values seen at capture."""
        written = self._written()
        self._frozen[padded_bs] = {name: tensor.data_ptr() for name, tensor in written.items()}
        self._at_capture[padded_bs] = {
            name: self._input(name, padded_bs).clone()
            for name in ("num_token_non_padded", "encoder_lens")
            if name in self.inputs
        }

    def _input(self, name: str, padded_bs: int) -> torch.Tensor:
        """The part of a static buffer that a graph of this size reads."""
        buffer: torch.Tensor = getattr(self.runner.buffers, name)
        rows = self._padded_tokens(padded_bs) if name in BY_TOKEN else padded_bs
        return buffer[..., :rows]

    def _written(self) -> dict[str, torch.Tensor]:
        """Buffers that the engine writes at a replay and the captured kernels read, unsliced."""
        inputs = {name: getattr(self.runner.buffers, name) for name in self.inputs}
        return {**inputs, **self._metadata_tensors()}

    def prepare_replay(self, batch: Batch) -> None:
        self._use()
        self._last_batch = self._translate(batch)
        # The model runner asks `can_run` before it takes the graph, and goes eager otherwise.
        self._eager = not self.runner.can_run(self._last_batch)
        if self._eager:
            self._prepare_eagerly()
        else:
            self.runner.prepare(self._last_batch)

    def replay(self, batch: Batch) -> None:
        if not self._eager:
            self._outputs = self.runner.replay()

    def eager(self, batch: Batch) -> None:
        """The backend's metadata for a forward without a graph."""
        self._use()
        self._eager = True
        self._last_batch = self._translate(batch)
        self._prepare_eagerly()

    def _prepare_eagerly(self) -> None:
        if self._last_batch.batch_size:  # an idle batch needs no metadata
            self.backend.init_forward_metadata(self._last_batch)

    def observe(self, batch: Batch) -> Observation:
        """The used part of the metadata, padded rows included."""
        eager = self._eager
        padded_bs = batch.raw_bs if eager else self.runner.padded_bs
        tokens = self._tokens(batch)
        padded_tokens = tokens if eager else self._padded_tokens(padded_bs)
        seen = Observation(batch.raw_bs, padded_bs, tokens, padded_tokens)
        if "encoder_lens" in self.inputs and not batch.encoder_lens.all():
            seen.declined = _NEEDS_ENCODERS
        seen.outputs = self._shown()
        if eager and not batch.raw_bs:
            return seen
        if eager:
            lens = self._last_batch.seq_lens
        else:
            seen.metadata.update(
                {name: self._input(name, padded_bs).clone() for name in self._live_inputs(batch)}
            )
            lens = seen.metadata["seq_lens"]
        seen.metadata.update(self._used(lens))
        seen.plan = self._plan()
        seen.types = self._types()
        return seen

    def _live_inputs(self, batch: Batch) -> list[str]:
        """Optional inputs are read only by a batch that has them."""
        absent = "mrope_positions" if batch.mrope is None else ""
        return [name for name in self.inputs if name != absent]

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """For the size replayed last (at first the largest); none after an eager step."""
        if self._eager:  # the metadata belongs to no graph
            return {}
        frozen = self._frozen.get(self.runner.padded_bs, {})
        written = self._written()
        return {name: (written[name], frozen[name]) for name in written if name in frozen}

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Values that a capture must get by the rule that replays follow."""
        return {} if self._eager else self._at_capture.get(self.runner.padded_bs, {})
