"""Metadata target `sglang-aiter`: sglang's AITER attention backend behind its decode runner.

No attention kernel runs and no output is promised: judged are the buffers that the captured
kernels would read, and the memory that preparing them touches. The backend is used as a server
uses it, through the runner of the release; which of its interfaces that runner calls is its own
affair. Sliding windows, encoders, FP8 KV and draft runners are not driven here.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.reach import Reach
from fuzzgraph.targets.sglang.aiter_fields import aiter_fields
from fuzzgraph.targets.sglang.batches import forward_batch
from fuzzgraph.targets.sglang.decode_runner import (
    RUNNER_MODULE,
    capture_all,
    open_decode_runner,
)
from fuzzgraph.targets.sglang.loading import engine_module
from fuzzgraph.targets.sglang.stand_ins import become_one_rank, model_runner
from fuzzgraph.world import Batch

__all__ = ["AiterSession", "AiterTarget", "verify_target"]

_BACKEND = "sglang.srt.layers.attention.aiter_backend"
_UNIFIED = "SGLANG_USE_AITER_UNIFIED_ATTN"
_INPUTS = ("input_ids", "positions", "req_pool_indices", "seq_lens", "seq_lens_cpu",
           "out_cache_loc")  # fmt: skip
_METADATA = ("kv_indptr", "kv_indices", "qo_indptr", "kv_last_page_len", "mask_indptr",
             "custom_mask")  # fmt: skip
_PLAN = ("max_q_len", "max_kv_len", "max_extend_len", "num_kv_splits")


class AiterTarget:
    """The AITER backend of the sglang release that this process holds.

    A server with speculation captures verify graphs for its target model, one without captures
    decode graphs, none both: hence one target for each.
    """

    package = "sglang"
    """Released package that the engine comes in."""
    isolated = True
    """It runs in a process of its own: one process holds one release."""

    def __init__(self, mode: Literal["decode", "target_verify"] = "decode") -> None:
        self.name = "sglang-aiter" if mode == "decode" else "sglang-aiter-verify"
        self._mode: Mode = mode
        self.reach = Reach(
            modes=(mode,),
            page_sizes=(1, 2, 16, 32, 64),
            page_maps=("csr", "page_table"),
            attentions=("mha", "mla"),
            max_batch=8,
            max_context_len=64,
            max_spec_steps=3,
            max_draft_tokens=4,
            mrope=True,
            capture_beyond_pool=True,
        )

    def unsupported(self, config: EngineConfig) -> str | None:
        """Names the first setting that this target does not drive."""
        if config.modes != (self._mode,):
            return f"captures {self._mode} graphs only, not {list(config.modes)}"
        if self._mode == "target_verify" and config.max_context_len < 2 * config.draft_tokens:
            # The rows a server captures hold draft_tokens of past and check as many.
            return f"a context of {config.max_context_len} cannot hold a captured row's drafts"
        if config.attention == "mla" and config.page_map == "page_table":
            return "page_map='page_table' with attention='mla': unified attention has no MLA"
        for name, value in (
            ("kv_dtype", "auto"), ("metadata", "full"), ("runner", "graph"), ("spec_topk", 1),
            ("sliding_window", 0), ("max_encoder_len", 0), ("recurrent_state", False),
            ("attn_tp_size", 1), ("seq_len_fill_value", 1),
        ):  # fmt: skip
            if getattr(config, name) != value:
                return f"{name}={getattr(config, name)!r} is not driven, only {value!r}"
        return None

    def open(self, config: EngineConfig, graphs: GraphEngine) -> AiterSession:
        """Pools, backend and decode runner of this release.

        Raises:
            AdapterUnavailable: there is no sglang here, or it lacks a module.
        """
        self.load()
        return AiterSession(config, graphs)

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        _load_once()


def verify_target() -> AiterTarget:
    """`sglang-aiter-verify`: the target model's graphs of a server with speculation."""
    return AiterTarget("target_verify")


_loaded = False


def _load_once() -> None:
    """Imports the release, and takes its objects out of the garbage collector's passes.

    The engine collects before every capture; over the half million objects of its own imports that
    takes longer than all the rest.
    """
    global _loaded
    if _loaded:
        return
    # Tensors that imports make belong to the process, not to the session that came first.
    with _disable_current_modes():
        for name in (_BACKEND, RUNNER_MODULE, "sglang.srt.speculative.eagle_info"):
            engine_module(name)
    become_one_rank()
    gc.collect()
    gc.freeze()
    _loaded = True


@contextlib.contextmanager
def _attention_kind(config: EngineConfig) -> Iterator[None]:
    """The backend reads from the environment whether it uses unified attention."""
    before = os.environ.get(_UNIFIED)
    os.environ[_UNIFIED] = "1" if config.page_map == "page_table" else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_UNIFIED]
        else:
            os.environ[_UNIFIED] = before


class AiterSession:
    """One backend and one decode runner with its captured graphs."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        self._config = config
        self._frozen: dict[int, dict[str, int]] = {}
        self._eager = False
        self._last_batch: Any = None
        self._verifies = config.modes == ("target_verify",)
        self.fields: tuple[Field, ...] = aiter_fields(config)
        self._model_runner = model_runner(config, graphs.device, verify=self._verifies)
        with _attention_kind(config):
            self.backend = engine_module(_BACKEND).AiterAttnBackend(self._model_runner)
        self._model_runner.attn_backend = self.backend
        self.runner = open_decode_runner(self._model_runner, config, graphs, self._remember)
        self.pools = Pools(req_to_token=self._model_runner.req_to_token_pool.req_to_token)

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

    def keeps_outputs(self, mode: Mode) -> bool:
        return False

    def warm_up(self) -> None:
        """The runner's capture loop warms up each size itself."""

    def capture(self) -> None:
        self._use()
        capture_all(self.runner)

    def _use(self) -> None:
        """Sessions share the process; each brings its own server arguments with it."""
        arguments = engine_module("sglang.srt.server_args")
        arguments.set_global_server_args_for_scheduler(self._model_runner.server_args)

    def _remember(self, padded_bs: int) -> None:
        """Addresses that the graph of this size has frozen."""
        self._frozen[padded_bs] = {
            name: tensor.data_ptr() for name, tensor in self._written().items()
        }

    def _written(self) -> dict[str, torch.Tensor]:
        """Buffers that the engine writes at a replay and the captured kernels read, unsliced."""
        inputs = {name: getattr(self.runner.buffers, name) for name in _INPUTS}
        return {**inputs, **self._metadata_tensors()}

    def _metadata_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors of the backend's current metadata, page tables by their own name."""
        seen = vars(self.backend.forward_metadata)
        found = {name: seen[name] for name in _METADATA if isinstance(seen.get(name), torch.Tensor)}
        if found.get("kv_indices") is not None and found["kv_indices"].dim() == 2:
            found["page_table"] = found.pop("kv_indices")
        return found

    def prepare_replay(self, batch: Batch) -> None:
        self._use()
        self._last_batch = forward_batch(batch, self._model_runner)
        # The model runner asks `can_run` before it takes the graph, and goes eager otherwise.
        self._eager = not self.runner.can_run(self._last_batch)
        if self._eager:
            self._prepare_eagerly()
        else:
            self.runner.replay_prepare(self._last_batch)

    def replay(self, batch: Batch) -> None:
        if not self._eager:
            self.runner.graphs[self.runner.bs].replay()

    def eager(self, batch: Batch) -> None:
        """The backend's metadata for a forward without a graph."""
        self._use()
        self._eager = True
        self._last_batch = forward_batch(batch, self._model_runner)
        self._prepare_eagerly()

    def _prepare_eagerly(self) -> None:
        if self._last_batch.batch_size:  # an idle batch needs no metadata
            self.backend.init_forward_metadata(self._last_batch)

    def observe(self, batch: Batch) -> Observation:
        """The used part of the metadata, padded rows included."""
        eager = self._eager
        padded_bs = batch.raw_bs if eager else self.runner.bs
        width = 1 if eager else self.runner.num_tokens_per_bs
        padded_tokens = batch.num_tokens if eager else padded_bs * width
        seen = Observation(batch.raw_bs, padded_bs, batch.num_tokens, padded_tokens)
        if eager and not batch.raw_bs:
            return seen
        if eager:
            lens = self._last_batch.seq_lens
        else:
            seen.metadata.update(self._inputs(padded_bs, padded_tokens))
            lens = seen.metadata["seq_lens"]
        seen.metadata.update(self._used(lens))
        metadata = self.backend.forward_metadata
        seen.plan = {name: getattr(metadata, name, None) for name in _PLAN}
        seen.types = {"forward_metadata": type(metadata).__name__}
        return seen

    def _inputs(self, padded_bs: int, padded_tokens: int) -> dict[str, torch.Tensor]:
        """The rows and tokens of the static inputs that this replay's graph covers."""
        by_token = ("input_ids", "positions", "out_cache_loc")
        return {
            name: getattr(self.runner.buffers, name)[
                : padded_tokens if name in by_token else padded_bs
            ].clone()
            for name in _INPUTS
        }

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a kernel reads of the metadata: below the last offset, below each row's length."""
        found = {name: tensor.clone() for name, tensor in self._metadata_tensors().items()}
        if "kv_indices" in found:
            found["kv_indices"] = found["kv_indices"][: found["kv_indptr"][-1]]
        if "page_table" in found:
            table_lens = lens + (self._config.draft_tokens if self._verifies else 0)
            found["page_table"] = _below(found["page_table"], table_lens, self._config.page_size)
        if "mask_indptr" in found:
            found["custom_mask"] = found["custom_mask"][: found["mask_indptr"][-1]]
        return found

    def results(self) -> Mapping[str, torch.Tensor]:
        return {}

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """For the size replayed last (at first the largest); none after an eager step."""
        if self._eager:  # the metadata belongs to no graph
            return {}
        frozen = self._frozen.get(getattr(self.runner, "bs", self.runner.max_bs), {})
        written = self._written()
        return {name: (written[name], frozen[name]) for name in written if name in frozen}

    def capture_values(self, batch: Batch) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        return {}

    def close(self) -> None:
        """Nothing outlives the session."""


def _below(table: torch.Tensor, lens: torch.Tensor, page_size: int) -> torch.Tensor:
    """[rows of `lens`, widest used] pages; 0 where a row's length has ended."""
    pages = (lens.to(torch.int64) + page_size - 1) // page_size
    width = int(pages.max()) if len(pages) else 0
    used = table[: len(lens), :width].clone()
    used.masked_fill_(torch.arange(used.shape[1], device=used.device) >= pages[:, None], 0)
    return used
