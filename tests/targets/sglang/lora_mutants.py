"""Planted bugs of sglang's LoRA manager and its backends, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.lora import Kernels, LoraSession, LoraTarget
from fuzzgraph.targets.sglang.backends.lora_v2 import LoraV2Session, LoraV2Target
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.decode_cuda_graph_runner import RUNNER_MODULE
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere

_LOOKUP = "sglang.kernels.ops.lora.dense.embedding_lora_a", "_embedding_lora_a_kernel"
_STACKED = "sglang.kernels.ops.lora.dense.qkv_lora_b", "_qkv_lora_b_kernel"
_POLICIES = "sglang.srt.lora.eviction_policy"

Mode = Literal["decode", "target_verify"]


class _Mutant(LoraSession):
    """Changes the backend that the manager has made."""

    def _open_backend(self, runner: ModelRunner) -> Any:
        found = super()._open_backend(runner)
        self._plant(self._manager, self._manager.lora_backend)
        return found

    def _plant(self, manager: Any, backend: Any) -> None:
        raise NotImplementedError


class _Told(_Mutant):
    """Changes what the manager tells its backend."""

    def _plant(self, manager: Any, backend: Any) -> None:
        stock = backend.prepare_lora_batch

        def changed(
            forward_batch: Any, weight_indices: Any, lora_ranks: Any, scalings: Any, *rest: Any,
            **named: Any,
        ) -> None:  # fmt: skip
            told = self._change(weight_indices, lora_ranks, scalings)
            stock(forward_batch, *told, *rest, **named)

        backend.prepare_lora_batch = changed

    def _change(self, slots: Any, ranks: Any, scalings: Any) -> tuple[Any, Any, Any]:
        raise NotImplementedError


class _ReversedRows(_Told):
    """Each row has the adapter of the row at the other end."""

    def _change(self, slots: Any, ranks: Any, scalings: Any) -> tuple[Any, Any, Any]:
        return slots[::-1], ranks, scalings


class _RankOfANeighbour(_Told):
    """Each adapter has the rank of the slot before it."""

    def _change(self, slots: Any, ranks: Any, scalings: Any) -> tuple[Any, Any, Any]:
        return slots, ranks[-1:] + ranks[:-1], scalings


class _FirstScales(_Told):
    """Scales stay those of the first batch with an adapter."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kernels: Kernels) -> None:
        self._first: list[Any] = []
        super().__init__(config, graphs, kernels)

    def _change(self, slots: Any, ranks: Any, scalings: Any) -> tuple[Any, Any, Any]:
        if any(scalings) and not self._first:
            self._first[:] = scalings
        return slots, ranks, list(self._first or scalings)


class _SlotsNotFilled(_Mutant):
    """An adapter that takes the place of another one finds the other one's weights there."""

    def _plant(self, manager: Any, backend: Any) -> None:
        pool, filled = manager.memory_pool, set[int]()
        stock = pool.load_lora_weight_to_buffer

        def once(uid: Any, buffer_id: int, *rest: Any, **named: Any) -> None:
            if buffer_id not in filled or uid is None:
                stock(uid, buffer_id, *rest, **named)
            filled.add(buffer_id)

        pool.load_lora_weight_to_buffer = once


class _StaleTail(_Mutant):
    """Segments behind those of this batch stay as the last one had them."""

    def _plant(self, manager: Any, backend: Any) -> None:
        stock = backend.prepare_lora_batch

        def stale(*given: Any, **named: Any) -> None:
            info = backend.cuda_graph_batch_info
            slots, ends = info.weight_indices.clone(), info.seg_indptr.clone()
            stock(*given, **named)
            if backend.batch_info is info:
                info.weight_indices[info.num_segments :] = slots[info.num_segments :]
                info.seg_indptr[info.num_segments + 1 :] = ends[info.num_segments + 1 :]

        backend.prepare_lora_batch = stale


class _OffsetsAtPoolSize(_Mutant):
    """The segment behind those of this batch ends where the largest graph does."""

    def _plant(self, manager: Any, backend: Any) -> None:
        stock = backend.prepare_lora_batch

        def widened(*given: Any, **named: Any) -> None:
            stock(*given, **named)
            info = backend.cuda_graph_batch_info
            if backend.batch_info is info:
                info.seg_indptr[info.num_segments + 1 :] = len(info.permutation)
                info.weight_indices[info.num_segments :] = info.weight_indices[0]

        backend.prepare_lora_batch = widened


class _PaddedRowsAreRouted(_Mutant):
    """Padded rows are merged into segments too, by the slots that the last batch left them."""

    def _plant(self, manager: Any, backend: Any) -> None:
        stock = backend._build_sgemm_routing
        last: list[Any] = []

        def all_rows(batch_info: Any, *given: Any, **named: Any) -> Any:
            live, slots = batch_info.bs, batch_info.weight_indices
            if last and batch_info.use_cuda_graph:
                slots[live:] = last[0][live:]
            if batch_info.use_cuda_graph:
                last[:] = [slots.clone()]
                batch_info.bs = len(slots)
            found = stock(batch_info, *given, **named)
            batch_info.bs = live
            return found

        backend._build_sgemm_routing = all_rows


class _PaddedRowsKeepSlots(_Mutant):
    """Slots behind the live rows stay as the last batch had them."""

    def _plant(self, manager: Any, backend: Any) -> None:
        stock = backend.prepare_lora_batch

        def kept(forward_batch: Any, *given: Any, **named: Any) -> None:
            slots = backend.cuda_graph_batch_info.weight_indices
            before, live = slots.clone(), forward_batch.batch_size
            stock(forward_batch, *given, **named)
            slots[live:] = before[live:]

        backend.prepare_lora_batch = kept


class _Line(_Mutant):
    """Changes one line of what decides who leaves the pool."""

    of_pool = False
    """Whether the line is the pool's own, and not the policy's."""
    method: str
    line: str
    other = "pass"

    def _plant(self, manager: Any, backend: Any) -> None:
        pool = manager.memory_pool
        holder = pool if self.of_pool else pool.eviction_policy
        change_line(holder, self.method, self.line, self.other)


class _KeepsItsOldPlace(_Line):
    """An adapter that is used again is as old as it was."""

    method, line = "mark_used", "self.access_order.pop(uid, None)"


class _NewestLeaves(_Line):
    """Whoever was used last leaves."""

    method, line = "select_victim", "list(self.access_order.keys())"
    other = "list(reversed(self.access_order.keys()))"


class _OnlyNewOnesAreUsed(_Line):
    """An adapter that is there already is not told to the policy."""

    of_pool, method = True, "prepare_lora_batch"
    line = "self.eviction_policy.mark_used(uid)"
    other = "uid in self.uid_to_buffer_id or self.eviction_policy.mark_used(uid)"


class _RemembersWhoLeft(_Line):
    """One that left keeps its place in the order."""

    of_pool, method = True, "prepare_lora_batch"
    line = "self.eviction_policy.remove(victim_uid)"


class _PinnedOnesLeave(_Line):
    """Pinned adapters leave as others do."""

    of_pool, method = True, "prepare_lora_batch"
    line, other = "if lora_ref and lora_ref.pinned:", "if False:"


class _BaseLeaves(_Line):
    """Requests without an adapter lose their slot before any adapter does."""

    of_pool, method = True, "prepare_lora_batch"
    line, other = "candidates_to_use = non_none_candidates", "candidates_to_use = {None}"


class _NoPolicyIsAsked(_Mutant):
    """The server's choice of a policy reaches nobody."""

    def _plant(self, manager: Any, backend: Any) -> None:
        manager.memory_pool.eviction_policy = engine_module(_POLICIES).LRUEvictionPolicy()


class _Elsewhere(LoraSession):
    """Changes one line of the engine while this session runs."""

    holder: str
    name: str
    line: str
    other: str

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kernels: Kernels) -> None:
        change_line_elsewhere(self, self.holder, self.name, self.line, self.other)
        super().__init__(config, graphs, kernels)


class _CapturedWithoutAGraph(_Elsewhere):
    """The batch of a capture says that ranks take no graph."""

    holder, name = f"{RUNNER_MODULE}:DecodeCudaGraphRunner", "capture_prepare"
    line, other = "can_run_decode_cuda_graph=True", "can_run_decode_cuda_graph=False"


class _NotToldAtReplay(_Elsewhere):
    """Beside other ranks no replay tells the manager of its batch."""

    holder = f"{RUNNER_MODULE}:DecodeCudaGraphRunner"
    name = "_init_replay_attn_metadata_from_view"
    line, other = "and self.model_runner.lora_manager.attn_dp_enabled", "and False"


class _RowsOfThisRank(_Elsewhere):
    """Layers that have gathered tokens take them for this rank's."""

    holder, name = "sglang.srt.layers.layer_boundary.stage", "publish_ffn_lora_rows"
    line, other = "LoRABatchLayout.TP_GLOBAL", "LoRABatchLayout.DP_LOCAL"


class _ManagersLine(_Line):
    """Changes one line of the manager."""

    method = "prepare_lora_batch"

    def _plant(self, manager: Any, backend: Any) -> None:
        change_line(manager, self.method, self.line, self.other)


class _RanksOfOwnAdapters(_ManagersLine):
    """Kernels hear of the adapters of this rank alone."""

    line = "for uid in active_lora_ids:"
    other = "for uid in set(forward_batch.lora_ids):"


class _OwnAdaptersAlone(_ManagersLine):
    """A rank loads the adapters of its own requests alone."""

    line = "self.fetch_new_loras(active_lora_ids)"
    other = "self.fetch_new_loras(set(forward_batch.lora_ids))"


class _RoutedBesideTheGraph(_Line):
    """What is sorted for all ranks is no memory of the graph."""

    method = "prepare_global_lora_batch"
    line, other = "self.cuda_graph_global_sgemm_batch_info,", "None,"

    def _plant(self, manager: Any, backend: Any) -> None:
        change_line(backend, self.method, self.line, self.other)


class _OldEmbeddings(_Line):
    """An adapter without weights of the embedding finds those of another one in its slot. Either
    half alone would change nothing, for the product with zeros is zero."""

    of_pool, method = True, "load_lora_weight_to_buffer"
    line = """for k in self.embedding_A_buffer.keys():
            self.embedding_A_buffer[k][buffer_id].zero_()
        for k in self.embedding_B_buffer.keys():
            self.embedding_B_buffer[k][buffer_id].zero_()"""


class _HeadsWeightsReversed(_ManagersLine):
    """The head has the rows of its second product from the last to the first."""

    method = "update_lora_info"
    line = 'self.memory_pool.get_embedding_tensor("lm_head", LoRAType.LORA_B),'
    other = 'self.memory_pool.get_embedding_tensor("lm_head", LoRAType.LORA_B).flip(1),'

    def _plant(self, manager: Any, backend: Any) -> None:
        super()._plant(manager, backend)
        manager.update_lora_info()


class _EmbeddingOfTheFirstSlot(LoraSession):
    """Every token is looked up in the adapter of the first segment."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kernels: Kernels) -> None:
        change_kernel(
            self, *_LOOKUP, "tl.load(weight_indices + batch_id)", "tl.load(weight_indices)"
        )
        super().__init__(config, graphs, kernels)


class _OneBlockOfColumns(LoraSession):
    """Programs of queries, keys and values are counted as if all columns were in one block."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kernels: Kernels) -> None:
        line = "tl.cdiv(max_qkv_out_dim, BLOCK_N)"
        change_kernel(self, *_STACKED, line, "tl.cdiv(BLOCK_N, max_qkv_out_dim)")
        super().__init__(config, graphs, kernels)


class _ReversedRowsV2(_ReversedRows, LoraV2Session):
    """Each row has the adapter of the row at the other end."""


class _FirstScalesV2(_FirstScales, LoraV2Session):
    """Scales stay those of the first batch with an adapter."""


class _TailNotCleared(_Mutant, LoraV2Session):
    """Tokens behind the live ones keep the slots that an earlier batch left them."""

    def _plant(self, manager: Any, backend: Any) -> None:
        stock = backend.prepare_lora_batch

        def kept(*given: Any, **named: Any) -> None:
            slots = backend.decode_cuda_graph_batch_info.token_slots
            before = slots.clone()
            stock(*given, **named)
            if backend.batch_info is backend.decode_cuda_graph_batch_info:
                live = backend.batch_info.num_tokens
                slots[live:] = before[live:]

        backend.prepare_lora_batch = kept


class _RoutesMadeOnce(_Mutant, LoraV2Session):
    """A graph keeps the routes of the forwards before its capture."""

    def _plant(self, manager: Any, backend: Any) -> None:
        backend.runner.workspace.routes = _KeptRoutes()


class _KeptRoutes(dict[Any, Any]):
    def clear(self) -> None:
        pass


def _planted(target: LoraTarget, session: type[LoraSession]) -> LoraTarget:
    target.session = session
    return target


def _opened(
    session: type[LoraSession], kernels: Kernels = "triton", mode: Mode = "decode"
) -> Callable[[], LoraTarget]:
    return lambda: _planted(LoraTarget("sglang-lora", kernels, mode), session)


def _opened_v2(session: type[LoraV2Session], mode: Mode = "decode") -> Callable[[], LoraTarget]:
    return lambda: _planted(LoraV2Target("sglang-lora-v2", mode), session)


reversed_rows = _opened(_ReversedRows)
reversed_rows_chunked = _opened(_ReversedRows, "csgmv")
keeps_its_old_place = _opened(_KeepsItsOldPlace)
captured_without_a_graph = _opened(_CapturedWithoutAGraph)
not_told_at_replay = _opened(_NotToldAtReplay)
rows_of_this_rank = _opened(_RowsOfThisRank)
ranks_of_own_adapters = _opened(_RanksOfOwnAdapters)
own_adapters_alone = _opened(_OwnAdaptersAlone)
routed_beside_the_graph = _opened(_RoutedBesideTheGraph)
old_embeddings = _opened(_OldEmbeddings)
heads_weights_reversed = _opened(_HeadsWeightsReversed)
embedding_of_the_first_slot = _opened(_EmbeddingOfTheFirstSlot)
one_block_of_columns = _opened(_OneBlockOfColumns)
one_block_of_columns_verify = _opened(_OneBlockOfColumns, mode="target_verify")
newest_leaves = _opened(_NewestLeaves)
only_new_ones_are_used = _opened(_OnlyNewOnesAreUsed, "csgmv")
remembers_who_left = _opened(_RemembersWhoLeft)
pinned_ones_leave = _opened(_PinnedOnesLeave)
base_leaves = _opened(_BaseLeaves)
no_policy_is_asked = _opened(_NoPolicyIsAsked)
rank_of_a_neighbour = _opened(_RankOfANeighbour)
first_scales = _opened(_FirstScales)
slots_not_filled = _opened(_SlotsNotFilled)
stale_tail = _opened(_StaleTail, "csgmv")
offsets_at_pool_size = _opened(_OffsetsAtPoolSize, "csgmv")
padded_rows_are_routed = _opened(_PaddedRowsAreRouted)
padded_rows_keep_slots = _opened(_PaddedRowsKeepSlots, mode="target_verify")
reversed_verify = _opened(_ReversedRows, mode="target_verify")
reversed_rows_v2 = _opened_v2(_ReversedRowsV2)
first_scales_v2 = _opened_v2(_FirstScalesV2)
tail_not_cleared = _opened_v2(_TailNotCleared)
routes_made_once = _opened_v2(_RoutesMadeOnce)
routes_made_once_verify = _opened_v2(_RoutesMadeOnce, "target_verify")
