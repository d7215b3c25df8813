"""A model of one attention layer on FlashInfer's wrappers, one wrapper for each captured size."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import content_for
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.plan import planned
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import CapturedGraph, GraphEngine, Pools
from fuzzgraph.row_mixing import mixed_outputs, split_mixed, with_mixed
from fuzzgraph.targets.flashinfer.caller import (
    Paged,
    captured_batch,
    padded_batch,
    padded_keys,
    queries_each,
)
from fuzzgraph.targets.flashinfer.release import float_workspace_bytes, workspaces_are_small
from fuzzgraph.targets.flashinfer.wrappers import Buffers, Kind
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.handed import BackendWatch
from fuzzgraph.targets.offline.session import GraphSession
from fuzzgraph.world import FIRST_PAGE, RESERVED_PAGE, Batch

_COPIES = "FlashInfer plan: with a graph, arguments are copied to the buffers of the constructor"
_PLAN = "FlashInfer plan: kernels that read the device's offsets share work out by the host's"
_TABLE = "FlashInfer decode.py plan, trtllm-gen: a page table and lengths of the list of pages"
_PADDED = "caller.py: what servers give padded rows"
_SERVERS = Call("plan", "sglang flashinfer_mla_backend.py fast_mla_decode_plan and its like")
_INPUTS = ("input_ids", "positions", "out_cache_loc")


def _fields(config: EngineConfig, kind: Kind) -> tuple[Field, ...]:
    keys = padded_keys(config)
    last = (keys - 1) % config.page_size + 1 if keys else 0
    pages = PaddingRule("reserved", RESERVED_PAGE)
    copied = {
        "qo_indptr": fields.offsets("qo_indptr", repeats="new_lens", source=_COPIES),
        "kv_indptr": fields.offsets("kv_indptr", repeats="page_counts", source=_COPIES),
        "kv_indices": Field("kv_indices", "indices", "page", pages, True, _COPIES, dtype="int32"),
        "kv_last_page_len": fields.lengths(
            "kv_last_page_len", fill=last, repeats="last_page_lens", source=_PADDED
        ),
        "kv_len_arr": fields.lengths("kv_len_arr", fill=keys, source=_PADDED),
        "block_tables": fields.page_table("block_tables", source=_TABLE),
        "kv_lens_buffer": fields.lengths(
            "kv_lens_buffer", fill=keys, repeats="seq_lens", source=_TABLE
        ),
        "planned_kv_indptr": fields.offsets(
            "planned_kv_indptr", repeats="page_counts", source=_PLAN
        ),
        "planned_qo_indptr": fields.offsets("planned_qo_indptr", repeats="new_lens", source=_PLAN),
        "planned_kv_len": fields.lengths("planned_kv_len", fill=keys, source=_PLAN),
    }
    return (
        fields.per_token("input_ids", source=_PADDED),
        fields.per_token("positions", source=_PADDED),
        fields.write_slots("out_cache_loc", source=_PADDED),
        *(copied[name] for name in (*kind.buffers, *kind.planned) if name in copied),
    )


class WrapperSession(GraphSession):
    """Wrappers on shared buffers, the caller's own inputs, and graphs over both."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: Kind) -> None:
        super().__init__()
        self._config, self._graphs, self._kind = config, graphs, kind
        self.fields = _fields(config, kind)
        self._sizes = sorted(config.capture_bs)
        self._captured: dict[int, CapturedGraph[torch.Tensor]] = {}
        self._rows = self._sizes[-1]
        content, device = content_for(config), graphs.device
        weights = (content.weights[name] for name in ("embed", "pos_embed"))
        self.embed, self.pos_embed = (torch.empty_like(w, device=device).copy_(w) for w in weights)
        pages = FIRST_PAGE + config.kv_pool_pages
        self.caches = tuple(
            torch.zeros(pages * config.page_size, *shape, dtype=content.storage_dtype,
                        device=device)
            for shape in content.plane_shapes
        )  # fmt: skip
        tokens = self._rows * queries_each(config)
        self.inputs = {name: torch.zeros(tokens, dtype=torch.int64, device=device)
                       for name in _INPUTS}  # fmt: skip
        masked = config.spec_topk > 1 or kind.mask_buffers
        self.buffers = _buffers(config, self._rows, device, masked=masked)
        with workspaces_are_small():
            self.wrappers = {size: kind.for_graph(self.buffers, size) for size in self._sizes}
            self.eager_wrapper = kind.without_graph(self.buffers)
        for wrapper in (*self.wrappers.values(), self.eager_wrapper):
            # On a CPU the device that a tensor says is any CPU; by the session's own, device and
            # host are told apart.
            wrapper.device = device
        self._watched = {
            size: self.watch(wrapper, graphs, itself=True)
            for size, wrapper in self.wrappers.items()
        }
        self._watched_eagerly = self.watch(self.eager_wrapper, graphs, itself=True)
        self.pools = Pools(kv_planes=self.caches)

    @property
    def roots(self) -> Mapping[str, object]:
        return {
            "wrappers": self.wrappers,
            "eager_wrapper": self.eager_wrapper,
            "buffers": self.buffers,
            "inputs": self.inputs,
            "model": {"embed": self.embed, "pos_embed": self.pos_embed, "caches": self.caches},
        }

    # The model

    def _forward(self, wrapper: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[tokens, columns] attention of the tokens' embeddings and the layer behind it."""
        config = self._config
        packed = self.embed.index_select(0, inputs["input_ids"])
        packed = packed + self.pos_embed.index_select(0, inputs["positions"])
        query = config.num_q_heads * config.head_dim
        q = packed[:, :query].reshape(-1, config.num_q_heads, config.head_dim)
        self._store(inputs["out_cache_loc"], packed[:, query:])
        paged = tuple(cache.unflatten(0, (-1, config.page_size)) for cache in self.caches)
        if config.attention == "mla":
            paged = tuple(cache.squeeze(2) for cache in paged)
        attended = self._kind.run(wrapper, q, paged, config)
        return with_mixed(attended.flatten(1), config)

    def _store(self, slots: torch.Tensor, packed: torch.Tensor) -> None:
        """New keys and values, as a server writes them before it attends."""
        content = content_for(self._config)
        widths = [heads * columns for heads, columns in content.plane_shapes]
        split = packed[:, : sum(widths)].split(widths, dim=1)  # latent rows have no values apart
        scales = (content.k_scale, content.v_scale)
        for cache, new, scale in zip(self.caches, split, scales, strict=False):
            stored = (new / scale).to(cache.dtype).view(-1, *cache.shape[1:])
            if cache.element_size() == 1:  # torch 2.6 cannot index float8 on a CPU
                cache, stored = cache.view(torch.uint8), stored.view(torch.uint8)
            cache.index_copy_(0, slots, stored)

    # The session

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return ("attention", *mixed_outputs(self._config))

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        return split_mixed(self._outputs, self._config)

    def capture(self) -> None:
        self.capturing = True
        for size in reversed(self._sizes):
            self._plan(self.wrappers[size], captured_batch(self._config, size))
            inputs = self._inputs_of(size)
            for tensor in inputs.values():
                tensor.zero_()

            def forward(size: int = size, inputs: Any = inputs) -> torch.Tensor:
                with workspaces_are_small():
                    return self._forward(self.wrappers[size], inputs)

            forward()
            self._captured[size] = self._graphs.capture(forward, key=f"{size} rows")
            self.remember(size)
        self.capturing = False

    def asked(self, key: Hashable | None) -> Sequence[BackendWatch]:
        """That of the wrapper that ran."""
        if key is None:
            return (self._watched_eagerly,)
        assert isinstance(key, int)
        return (self._watched[key],)

    def _inputs_of(self, rows: int) -> dict[str, torch.Tensor]:
        tokens = rows * queries_each(self._config)
        return {name: tensor[:tokens] for name, tensor in self.inputs.items()}

    def _plan(self, wrapper: Any, batch: Paged) -> None:
        with workspaces_are_small():
            self._kind.plan(wrapper, batch, self._config, self._graphs.device)
        held = getattr(wrapper, "_int_workspace_buffer", None)
        rule = "a planned wrapper must hold its _int_workspace_buffer, which servers plan into"
        _SERVERS.needs(isinstance(held, torch.Tensor), rule, held)

    def graph_key(self) -> int:
        return self._rows

    def static_buffers(self, key: Hashable) -> Mapping[str, torch.Tensor]:
        """What the wrapper of that graph would write now, and its workspace."""
        assert isinstance(key, int)
        wrapper = self.wrappers[key]
        held = {name: getattr(wrapper, place, None) for name, place in self._kind.buffers.items()}
        # What only a plan makes is not there before the first one.
        held = {name: buffer for name, buffer in held.items() if buffer is not None}
        return {**self.inputs, **held, "int_workspace": wrapper._int_workspace_buffer}

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        wrapper = self.eager_wrapper if self.ran_eagerly else self.wrappers[self._rows]
        plan = planned(wrapper._int_workspace_buffer)
        if plan is None:
            return {}
        made = {
            "planned_kv_indptr": plan.pages,
            "planned_qo_indptr": plan.queries,
            "planned_kv_len": plan.lens,
        }
        return {name: torch.from_numpy(made[name]).int() for name in self._kind.planned}

    def plan(self) -> dict[str, object]:
        wrapper = self.eager_wrapper if self.ran_eagerly else self.wrappers[self._rows]
        return {"plan_info": tuple(wrapper._plan_info or ())}

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if self.ran_eagerly:
            return batch.raw_bs, batch.num_tokens
        return self._rows, self._rows * queries_each(self._config)

    def prepare_replay(self, batch: Batch) -> None:
        fitting = [size for size in self._sizes if size >= batch.raw_bs]
        if not fitting:
            self.eager(batch)
            return
        self.ran_eagerly, self._rows = False, fitting[0]
        live = self._live_inputs(batch)
        for name, tensor in self._inputs_of(self._rows).items():
            tensor[: batch.num_tokens].copy_(live[name])
        self._inputs_of(self._rows)["out_cache_loc"][batch.num_tokens :] = 0
        self._plan(self.wrappers[self._rows], padded_batch(batch, self._config, self._rows))

    def replay(self, batch: Batch) -> None:
        if not self.ran_eagerly:
            self._captured[self._rows].replay()
            self._outputs = self._captured[self._rows].outputs

    def eager(self, batch: Batch) -> None:
        self.ran_eagerly = True
        self._plan(self.eager_wrapper, padded_batch(batch, self._config, batch.raw_bs))
        inputs = {name: each.to(self._graphs.device)
                  for name, each in self._live_inputs(batch).items()}  # fmt: skip
        with workspaces_are_small():
            self._outputs = self._forward(self.eager_wrapper, inputs)

    @staticmethod
    def _live_inputs(batch: Batch) -> dict[str, torch.Tensor]:
        given = (batch.input_ids, batch.positions, batch.slot_mapping)
        return {name: torch.from_numpy(each) for name, each in zip(_INPUTS, given, strict=True)}

    def results(self) -> Mapping[str, torch.Tensor]:
        return {"attention": self._outputs}

    def close(self) -> None:
        self._captured.clear()


def _buffers(config: EngineConfig, rows: int, device: torch.device, *, masked: bool) -> Buffers:
    """Room for the longest batch of a graph."""

    def ints(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, device=device)

    queries = queries_each(config)
    keys = config.max_context_len + 1 + queries
    bits = rows * (-(-queries * keys // 8))
    return Buffers(
        workspace=torch.zeros(float_workspace_bytes(config), dtype=torch.uint8, device=device),
        qo_indptr=ints(rows + 1),
        kv_indptr=ints(rows + 1),
        kv_indices=ints(rows * -(-keys // config.page_size)),
        last_page_len=ints(rows),
        kv_lens=ints(rows),
        mask=torch.zeros(bits, dtype=torch.uint8, device=device) if masked else None,
        mask_indptr=ints(rows + 1) if masked else None,
    )
