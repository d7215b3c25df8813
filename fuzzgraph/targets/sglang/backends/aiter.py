"""Metadata target `sglang-aiter`: sglang's AITER attention backend behind its decode runner.

No attention kernel runs and no output is promised: judged are the buffers that the captured
kernels would read, and the memory that preparing them touches. The backend is used as a server
uses it, through the runner of the release; which of its interfaces that runner calls is its own
affair. Sliding windows, encoders, FP8 KV and draft runners are not driven here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.backends.aiter_fields import aiter_fields
from fuzzgraph.targets.sglang.decode_session import DecodeSession, captures_drafts, load_once
from fuzzgraph.targets.sglang.fields import input_names
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

__all__ = ["AiterSession", "AiterTarget", "verify_target"]

_BACKEND = "sglang.srt.layers.attention.aiter_backend"
_UNIFIED = "SGLANG_USE_AITER_UNIFIED_ATTN"
_METADATA = ("kv_indptr", "kv_indices", "qo_indptr", "kv_last_page_len", "mask_indptr",
             "custom_mask")  # fmt: skip
_PLAN = ("max_q_len", "max_kv_len", "max_extend_len", "num_kv_splits")


class AiterTarget(ReleasedTarget):
    """The AITER backend of the sglang release that this process holds.

    A server with speculation captures verify graphs for its target model, one without captures
    decode graphs, none both: hence one target for each.
    """

    any_page_size = True

    def __init__(self, mode: Literal["decode", "target_verify"] = "decode") -> None:
        self.name = "sglang-aiter" if mode == "decode" else "sglang-aiter-verify"
        self.about = f"AITER's metadata on the decode runner, {mode} graphs; no outputs"
        self.capabilities = Capabilities(
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

    def _refused(self, config: EngineConfig) -> str | None:
        if config.attention == "mla" and config.page_map == "page_table":
            return "page_map='page_table' with attention='mla': unified attention has no MLA"
        return captures_drafts(config)

    def _session(self, config: EngineConfig, graphs: GraphEngine) -> AiterSession:
        return AiterSession(config, graphs)

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        load_once(_BACKEND)


def verify_target() -> AiterTarget:
    """`sglang-aiter-verify`: the target model's graphs of a server with speculation."""
    return AiterTarget("target_verify")


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


class AiterSession(DecodeSession):
    """One backend and one decode runner with its captured graphs."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        self.fields = aiter_fields(config)
        self.inputs = input_names(config)
        super().__init__(config, graphs, backend="aiter")

    def _open_backend(self, runner: ModelRunner) -> Any:
        with _attention_kind(self._config):
            return engine_module(_BACKEND).AiterAttnBackend(runner)

    def _metadata_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors of the backend's current metadata, page tables by their own name."""
        seen = vars(self.backend.forward_metadata)
        found = {name: seen[name] for name in _METADATA if isinstance(seen.get(name), torch.Tensor)}
        if found.get("kv_indices") is not None and found["kv_indices"].dim() == 2:
            found["page_table"] = found.pop("kv_indices")
        return found

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

    def _plan(self) -> dict[str, object]:
        metadata = self.backend.forward_metadata
        return {name: getattr(metadata, name, None) for name in _PLAN}

    def _types(self) -> dict[str, str]:
        return {"forward_metadata": type(self.backend.forward_metadata).__name__}


def _below(table: torch.Tensor, lens: torch.Tensor, page_size: int) -> torch.Tensor:
    """[rows of `lens`, widest used] pages; 0 where a row's length has ended."""
    pages = (lens.to(torch.int64) + page_size - 1) // page_size
    width = int(pages.max()) if len(pages) else 0
    used = table[: len(lens), :width].clone()
    used.masked_fill_(torch.arange(used.shape[1], device=used.device) >= pages[:, None], 0)
    return used
