"""Target `sglang-full-prefill`: graphs on the token axis that hold attention too.

The release's own runner captures the body of the model, attention included, for a fixed number of
request slots; a replay pads tokens to a captured count and requests to the slots. Its attention is
`FlashAttentionBackend`, with models in place of compiled kernels: it and FlashInfer's prepare such
graphs, Triton's refuses the mode (triton_backend.py, _build_cuda_graph_forward_metadata).
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig, Mode, attention_outputs
from fuzzgraph.errors import AdapterUnavailable, NotInRelease
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference import LAST_ATTENTION
from fuzzgraph.row_mixing import mixed_outputs
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.used import below_lengths
from fuzzgraph.targets.sglang.attention_model import (
    ROW_MIXINGS,
    FullPrefillModel,
    hidden_in,
    outputs_in,
)
from fuzzgraph.targets.sglang.backends.attention_backend import open_backend
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.excuses.prefill import FULL_PREFILL_EXCUSES
from fuzzgraph.targets.sglang.fields import window_fields
from fuzzgraph.targets.sglang.release import is_before, release
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import (
    FULL,
    PrefillKind,
    prefill_module,
)
from fuzzgraph.targets.sglang.runners.prefill_session import (
    COUNT,
    PrefillSession,
    count_field,
    token_fields,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import cuda_server
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.targets.sglang.unified_pool import refused_virtual_pages
from fuzzgraph.world import Batch

_SENTINELS = (
    "sglang PrefillCudaGraphRunner.load_batch: slots behind the requests are cleared, with lengths "
    "of zero"
)
_BAKED = "sglang flashattention_backend.py _init_full_cg_prefill_metadata: refilled in place"
_TOO_MANY = "sglang PrefillCudaGraphRunner: a full graph has room for {} requests"

_SECOND = 0, 5, 16
"""In 0.5.15 a full graph on FlashAttention has pages of one token, and layers of one kind."""
_LENGTHS = {
    "seq_lens": "seq_lens",
    "orig_seq_lens": "seq_lens",
    "extend_seq_lens": "new_lens",
    "extend_prefix_lens": "cached_lens",
}
"""Static inputs of the requests, and what of the logical batch they repeat."""
_TABLES = ("page_table", "swa_page_table")


class FullPrefillTarget(SglangTarget):
    """Full prefill graphs of the sglang release that this process holds."""

    about = "full prefill graphs, FlashAttention 3"
    excuses = FULL_PREFILL_EXCUSES
    outputs_judged = MappingProxyType({"prefill": ""})
    also_stood_in_for = FA3.stood_in_for
    capabilities = Capabilities(
        modes=("prefill", "idle"),
        page_sizes=FA3.page_sizes,
        dtypes=("float32", "float16", "bfloat16"),
        prefill_runners=("full",),
        max_prefill_slots=4,
        max_batch=6,
        max_context_len=LONGEST_CONTEXT,
        max_q_heads=4,
        max_head_dim=16,
        max_tp_size=4,
        swa_window=True,
        virtual_pages=True,
        layer_types=True,
        images=True,
        prefix_by_group=False,
        row_mixings=ROW_MIXINGS,
        **DATA_RANKS,
    )

    def __init__(self, name: str) -> None:
        self.name = name

    def refused(self, config: EngineConfig) -> str | None:
        largest = config.capture_tokens[-1]
        if largest % config.attn_tp_size:
            return f"{config.attn_tp_size} ranks cannot share {largest} tokens"
        most = config.prefill_slots * config.max_context_len
        if largest > most:
            # sglang cuda_graph_setup.py keeps no graph of more tokens.
            return f"no graph has {largest} tokens: {config.prefill_slots} slots end at {most}"
        return refused_virtual_pages(config, self.capabilities)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> FullPrefillSession:
        return FullPrefillSession(config, graphs, FULL)

    def modules(self) -> tuple[str, ...]:
        module = prefill_module(FULL)
        if module is None:
            raise AdapterUnavailable(
                f"sglang {release()} has no full graphs for prefills, which target {self.name!r} "
                "drives. Name a release that has them: fuzzgraph targets lists them."
            )
        return FA3.place()[0], module, "sglang.srt.layers.radix_attention"


def _fields(config: EngineConfig) -> tuple[Field, ...]:
    lengths = (
        fields.lengths(name, fill=0, repeats=repeats, source=_SENTINELS)
        for name, repeats in _LENGTHS.items()
    )
    starts = Field(
        "extend_start_loc", "requests", "nothing", fields.FREE, repeats="row_starts",
        source=_SENTINELS,
    )  # fmt: skip
    return (
        *token_fields(config),
        count_field(),
        fields.request_rows(source=_SENTINELS),
        *lengths,
        starts,
        fields.lengths("cache_seqlens", fill=0, repeats="seq_lens", source=_BAKED),
        fields.offsets("cu_seqlens_q", repeats="new_lens", source=_BAKED),
        fields.offsets("cu_seqlens_k", repeats="seq_lens", source=_BAKED),
        fields.page_table(source=_BAKED),
        *(
            replace(field, source=_BAKED)
            for field in window_fields("windowed_lens")
            if config.swa_window and field.name in FA3.fields
        ),
    )


class FullPrefillSession(PrefillSession):
    """An opened runner on FlashAttention 3, with one layer, or a second one behind a window."""

    attention = FA3.name
    # What the engine settles for a model without latent attention (model_runner_components
    # misc_utils.py, maybe_disable_chunked_prefix_cache).
    arguments = MappingProxyType({"disable_chunked_prefix_cache": True})
    model = FullPrefillModel
    attention_captured = True
    # From 0.5.19 on a full graph always has it: what masks padded tokens needs it (PR 35588).
    compared_at_capture = (COUNT,)

    ranks_since = (0, 5, 19)
    on = FA3
    """The backend of attention."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: PrefillKind) -> None:
        if is_before(_SECOND) and (config.page_size > 1 or config.swa_window):
            raise NotInRelease("pages and windows are driven from sglang 0.5.16 on")
        super().__init__(config, graphs, kind)

    @staticmethod
    def declared(config: EngineConfig) -> tuple[Field, ...]:
        return _fields(config)

    def engine_runs(self) -> contextlib.AbstractContextManager[None]:
        return cuda_server()

    def _open_backend(self, runner: ModelRunner) -> Any:
        return open_backend(self.on, runner)

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        if mode == "idle":
            return ()
        return (*attention_outputs(self._config), *mixed_outputs(self._config), LAST_ATTENTION)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        """The hidden states behind the body and the rows of them that logits are made of; of both
        the engine has cut off what it padded."""
        last = outputs_in(outputs, self._config)["attention"]
        return {**hidden_in(outputs, self._config), LAST_ATTENTION: last}

    def _rule_against(self, batch: Batch) -> str:
        if batch.raw_bs > self._config.prefill_slots:
            return _TOO_MANY.format(self._config.prefill_slots)
        return super()._rule_against(batch)

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        rows, tokens = super().padded_size(batch)
        return (rows if self.ran_eagerly else self._config.prefill_slots), tokens

    def static_buffers(self, key: Hashable) -> dict[str, torch.Tensor]:
        return {**self._static(), **self.runner.requests, **self._metadata()}

    def _metadata(self) -> dict[str, torch.Tensor]:
        """Of attention: what the graphs have frozen, or what a run without one made."""
        return FA3.read(self.backend.forward_metadata)

    def used_buffers(self, batch: Batch, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        held = self.runner.requests if batch.raw_bs else {}
        requests = {name: buffer[:rows].clone() for name, buffer in held.items()}
        return {**super().used_buffers(batch, rows, tokens), **requests}

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not batch.raw_bs:  # nobody's request, see `PrefillSession.used_metadata`
            return {}
        used = {name: tensor.clone() for name, tensor in self._metadata().items()}
        for name in _TABLES:
            if name in used:
                lens, page = used["cache_seqlens"], self._config.page_size
                used[name] = below_lengths(used[name], lens, page, 1)
        if "swa_out_cache_loc" in used and not self.ran_eagerly:
            tokens = len(self._given().input_ids)
            used["swa_out_cache_loc"] = self.backend.full_cg_prefill_swa_out_cache_loc[
                :tokens
            ].clone()
        return used

    def plan(self) -> dict[str, object]:
        return {"max_seq_len_q": int(self.backend.forward_metadata.max_seq_len_q)}
