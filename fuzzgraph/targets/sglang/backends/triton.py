"""Targets `sglang-triton` and `sglang-triton-verify`: Triton attention, its outputs judged.

The release's own decode runner and backend, the engine's pools, one layer of its `RadixAttention`:
on a CPU the kernels run in Triton's interpreter. Stood in for is the number of cores of a device,
by which the backend splits long rows. Sliding windows and latent attention are not driven.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.attention_model import AttentionModel, in_forward_context
from fuzzgraph.targets.sglang.decode_session import (
    DecodeSession,
    captures_drafts,
    keeps_ladder,
    load_once,
)
from fuzzgraph.targets.sglang.fields import input_fields, input_names
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import RESERVED_SLOT, Batch

__all__ = ["CORES", "TRITON_BACKEND", "TritonSession", "TritonTarget", "verify_target"]

TRITON_BACKEND = "sglang.srt.layers.attention.triton_backend"
CORES = 4
_SUMS = "sglang triton_backend.py: cumsum over all bs rows at every replay; entry 0 stays from init"
_WRITER = (
    "sglang create_flashinfer_kv_indices_triton writes below kv_indptr[bs]; a padded row has the "
    "fill value's length and lies in the pool's padding row"
)
_WIDTHS = "sglang triton_backend.py: multiples of the number of draft tokens"
_MASK = "sglang triton_backend.py: custom_mask and mask_indptr choose visibility, no memory"
_SPLITS = "sglang get_num_kv_splits_triton: between 1 and max_kv_splits for every row"


class TritonTarget(ReleasedTarget):
    """The Triton backend of the sglang release that this process holds."""

    any_page_size = True

    def __init__(self, mode: Literal["decode", "target_verify"] = "decode") -> None:
        self.name = "sglang-triton" if mode == "decode" else "sglang-triton-verify"
        self.about = f"Triton attention on the decode runner, {mode} graphs; outputs judged"
        self.capabilities = Capabilities(
            modes=(mode,),
            page_sizes=(1, 4, 16),
            dtypes=("float32", "float16"),  # the interpreter's tl.dot takes bfloat16 for integers
            max_batch=4,
            max_context_len=32,
            max_q_heads=4,
            max_head_dim=16,
            max_tp_size=4,
            max_spec_topk=2,
            max_spec_steps=3,
            max_draft_tokens=4,
            # Where ranks share the rows, which the engine rounds the pool up for.
            capture_beyond_pool=True,
        )

    def _refused(self, config: EngineConfig) -> str | None:
        return captures_drafts(config) or keeps_ladder(config)

    def _session(self, config: EngineConfig, graphs: GraphEngine) -> TritonSession:
        return TritonSession(config, graphs)

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        load_once(TRITON_BACKEND, "sglang.srt.layers.radix_attention")


def verify_target() -> TritonTarget:
    """`sglang-triton-verify`: the target model's graphs of a server with speculation."""
    return TritonTarget("target_verify")


class TritonSession(DecodeSession):
    """One backend, one layer and one decode runner with its captured graphs."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        span = PaddingRule("reserved")
        lens = "cached_lens" if config.modes == ("target_verify",) else "seq_lens"
        self.inputs = input_names(config)
        self.fields = (
            *input_fields(config, 1),
            Field("kv_indptr", "indptr", "offset", span, source=_SUMS, repeats=lens),
            Field("kv_indices", "indices", "slot", PaddingRule("reserved", RESERVED_SLOT),
                  rewritten=True, source=_WRITER),
            Field("num_kv_splits", "scalar", "nothing", PaddingRule("free"), source=_SPLITS,
                  unjudged="a heuristic of the engine's: any number of splits is right"),
            # int64 by design, so not judged as an indptr of the kernels, which are int32.
            Field("qo_indptr", "scalar", "nothing", PaddingRule("free"), source=_WIDTHS,
                  repeats="query_offsets"),
            Field("mask_indptr", "scalar", "nothing", PaddingRule("free"), source=_MASK,
                  repeats="mask_offsets"),
            Field("custom_mask", "scalar", "nothing", PaddingRule("free"), source=_MASK,
                  repeats="mask"),
        )  # fmt: skip
        self._model = AttentionModel(config, graphs.device)
        super().__init__(config, graphs, backend="triton", model=self._model)
        pool = self._model_runner.token_to_kv_pool
        self.pools = Pools(
            req_to_token=self._model_runner.req_to_token_pool.req_to_token,
            kv_planes=(pool.k_buffer[0], pool.v_buffer[0]),
        )

    def _open_backend(self, runner: ModelRunner) -> Any:
        module = engine_module(TRITON_BACKEND)
        module.get_device_core_count = lambda *_: CORES
        return module.TritonAttnBackend(runner)

    @property
    def roots(self) -> Mapping[str, object]:
        return {**super().roots, "model": self._model}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return ("attention",)

    def eager(self, batch: Batch) -> None:
        super().eager(batch)
        self._run_eagerly()

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if self._eager:
            self._run_eagerly()

    def _run_eagerly(self) -> None:
        given = self._last_batch
        with in_forward_context(self.backend, given):
            self._outputs = self._model.forward(given.input_ids, given.positions, given)

    def _shown(self) -> dict[str, torch.Tensor]:
        heads, columns = self._config.num_q_heads, self._config.v_head_dim
        return {"attention": self._outputs.next_token_logits.view(-1, heads, columns).clone()}

    def _metadata_tensors(self) -> dict[str, torch.Tensor]:
        backend = self.backend
        found = {"kv_indptr": backend.kv_indptr, "kv_indices": backend.cuda_graph_kv_indices}
        if not self._verifies:
            return {**found, "num_kv_splits": backend.cuda_graph_num_kv_splits}
        found |= {"qo_indptr": backend.qo_indptr, "mask_indptr": backend.mask_indptr}
        if hasattr(backend, "cuda_graph_custom_mask"):  # since 0.5.17 the runner has the mask
            found["custom_mask"] = backend.cuda_graph_custom_mask
        return found

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the kernels read: below the last offset."""
        rows = len(lens)
        found = self._metadata_tensors()
        if self._eager:
            metadata = self.backend.forward_metadata
            found = {name: getattr(metadata, name) for name in found}
        used = {
            name: tensor[: rows + 1] if name.endswith("_indptr") else tensor[:rows]
            for name, tensor in found.items()
            if tensor is not None
        }
        used["kv_indices"] = found["kv_indices"][: used["kv_indptr"][-1]]
        if "custom_mask" in used:
            used["custom_mask"] = found["custom_mask"][: used["mask_indptr"][-1]]
        return {name: tensor.clone() for name, tensor in used.items()}

    def _plan(self) -> dict[str, object]:
        """Splits decide the order of summation."""
        if self._verifies:
            return {}
        metadata = self.backend.forward_metadata
        splits = metadata.num_kv_splits if self._eager else self.backend.cuda_graph_num_kv_splits
        live = self._last_batch.batch_size
        return {"num_kv_splits": tuple(splits[:live].tolist())}
