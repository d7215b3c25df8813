"""The distributed groups of a server, stood in for by the place of this one process in them.

There is one process and nobody to talk to. What the code under test asks a group for is its size
and this process's rank in it; nothing is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fuzzgraph.adapted_layer import ADAPTED_INPUT
from fuzzgraph.case import EngineConfig
from fuzzgraph.experts.columns import EXPERT_WIDTH
from fuzzgraph.language_head import hidden_columns
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.custom_all_reduce import custom_all_reduce

_ATTENTION = ("_ATTN_TP",)
_WHOLE = ("_TP", "_MOE_EP")
"""Groups of all data-parallel ranks with their attention-TP ranks: experts are spread over all."""
_DATA_RANKS = "sglang.srt.layers.dp_attention"
_SINGLE = ("_WORLD", "_PP", "_SELF_PP", "_ATTN_CP", "_MOE_TP", "_MOE_DP", "_DCP")


class Group:
    """A process group: a size, this process's rank, nothing to wait for."""

    ca_comm: Any = None
    """The custom all-reduce, of which the engine's code asks what it takes."""
    cpu_group = device_group = None
    """What torch sends over, which nobody does."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.world_size = size
        self.rank = self.rank_in_group = rank

    @property
    def active_ranks_cpu(self) -> torch.Tensor:
        """Which ranks take part: all."""
        return torch.ones(self.world_size, dtype=torch.int32)

    @property
    def is_last_rank(self) -> bool:
        """Of stages of a pipeline, whether this one has the model's head."""
        return bool(self.rank == self.world_size - 1)

    def barrier(self) -> None: ...

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum: what the others have is not known."""
        return part

    def all_gather(self, part: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """What all ranks have: of a group of one this rank's, as the engine's group gives it."""
        assert self.world_size == 1, "what other ranks have is not known"
        return part

    @contextlib.contextmanager
    def graph_capture(self, context: Any = None, stream: Any = None) -> Iterator[Any]:
        """The graph engine opens the capture itself, on its own stream."""
        yield context or Stub(stream=stream)


def become_rank(config: EngineConfig, everyone: Group) -> None:
    """Make this process the case's rank of every group that the release knows.

    Args:
        everyone: the group of all ranks, as `whole` gives it.
    """
    state = engine_module("sglang.srt.distributed.parallel_state")
    shared = attention_ranks(config)
    for names, group in ((_ATTENTION, shared), (_WHOLE, everyone), (_SINGLE, Group())):
        for name in names:
            if hasattr(state, name):
                setattr(state, name, group)
    called = getattr(everyone, "unique_name", None)
    if called is not None:  # some collectives look their group up by it
        state._groups[called] = lambda: everyone
    everyone.ca_comm = custom_all_reduce(config)
    if has_module(_DATA_RANKS):
        _become_data_rank(config, engine_module(_DATA_RANKS))


def attention_ranks(config: EngineConfig) -> Group:
    """Ranks that share the heads of attention, those over which experts are spread among them;
    data-parallel ones, over which experts may be spread too, do not."""
    experts, expert = (1, 0) if config.dp_size > 1 else (config.ep_size, config.ep_rank)
    return Group(config.attn_tp_size * experts, config.attn_tp_rank * experts + expert)


def whole(config: EngineConfig) -> Group:
    """All ranks, those of attention-TP next to each other (sglang derive_attention_ranks)."""
    shared = attention_ranks(config)
    rank = config.dp_rank * shared.world_size + shared.rank
    return Group(config.dp_size * shared.world_size, rank)


def _become_data_rank(config: EngineConfig, groups: Any) -> None:
    """What `initialize_dp_attention` sets; up to 0.5.21 sizes and ranks are
    globals, and a flag of the process up to 0.5.16."""
    named: dict[str, Any] = {"_ENABLE_DP_ATTENTION_FLAG": config.dp_size > 1}
    for kind in ("ATTN_DP", "LOCAL_ATTN_DP"):
        named |= {f"_{kind}_SIZE": config.dp_size, f"_{kind}_RANK": config.dp_rank}
    for name, value in named.items():
        if hasattr(groups, name):
            setattr(groups, name, value)
    if hasattr(groups, "get_flags"):
        groups.get_flags().dp.enabled = config.dp_size > 1


def size_gathered_rows(config: EngineConfig, device: str) -> None:
    """What `initialize_dp_attention` says of the rows that the ranks gather."""
    engine_module(_DATA_RANKS)._DpGatheredBufferWrapper.set_metadata(
        hidden_size=_hidden_size(config),
        dtype=getattr(torch, config.dtype),
        device=torch.device(device),
    )


def _hidden_size(config: EngineConfig) -> int:
    if config.gathered_logits:
        return hidden_columns(config)
    if config.num_experts:
        return EXPERT_WIDTH
    return ADAPTED_INPUT if config.max_loras else config.num_q_heads * config.head_dim


def rank_of(config: EngineConfig, group: Group) -> dict[str, Any]:
    """What `become_rank` does, for releases that keep ranks in their runtime context."""
    shared = attention_ranks(config)
    return {
        "tp_rank": group.rank,
        "attn_tp_rank": shared.rank,
        "attn_tp_group": shared,
        "attn_cp_rank": 0,
        "attn_dp_rank": config.dp_rank,
        "moe_ep_rank": group.rank,
        "moe_ep_group": group,
        "moe_tp_rank": 0,
        "pp_group": Group(),
        "tp_group": group,
    }


def with_own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory with a storage of its own, as each allocation of a device has one: guarded
    tensors share theirs, and the engine looks whether two alias by it (dp_attention.py,
    dp_scatter)."""
    found: torch.Tensor = torch.utils.dlpack.from_dlpack(tensor)
    return found


@contextlib.contextmanager
def gathered_apart() -> Iterator[None]:
    """Inside, a rank's own rows have a storage apart from that of gathered ones, wherever the
    engine puts them in or takes them out."""
    ranks = engine_module(_DATA_RANKS)
    buffers, gather = ranks._DpGatheredBufferWrapper, ranks._dp_gather_via_all_reduce
    allocate = buffers.get_local_dp_buffer

    def allocated(*args: Any, **more: Any) -> torch.Tensor:
        return with_own_storage(allocate(*args, **more))

    def gathered(into: torch.Tensor, own: torch.Tensor, *args: Any, **more: Any) -> None:
        gather(into, with_own_storage(own), *args, **more)

    taken_out = replaced_names([buffers], {"get_local_dp_buffer": allocated})
    put_in = replaced_names([ranks], {"_dp_gather_via_all_reduce": gathered})
    with taken_out, put_in:
        yield


def live_rows(sizes: torch.Tensor, most: int) -> torch.Tensor:
    """bool [ranks, most]: which rows of each rank are of its tokens, of which it has `sizes`."""
    return torch.arange(most, device=sizes.device)[None, :] < sizes[:, None]


def live_rows_of_others(sizes: torch.Tensor, most: int, rank: int) -> torch.Tensor:
    """The same, but for none of this rank's."""
    others = torch.arange(len(sizes), device=sizes.device)[:, None] != rank
    return live_rows(sizes, most) & others


def starts_in_sum(sizes: torch.Tensor, rows: int) -> torch.Tensor:
    """[ranks] where the tokens of each rank begin among rows that are summed: behind those of the
    ranks before it, or, in a graph, behind as many rows of each as the graph has.

    Nothing here reads a device's numbers on the host.

    Args:
        sizes: int64 [ranks], tokens of each; rows: of all ranks together.
    """
    ranks = len(sizes)
    padded = torch.arange(ranks, device=sizes.device) * (rows // ranks)
    return torch.where(sizes.sum() == rows, sizes.cumsum(0) - sizes, padded)


def sum_of_ranks(
    part: torch.Tensor, handed: torch.Tensor, live: torch.Tensor, starts: torch.Tensor
) -> torch.Tensor:
    """What a rank has, and to it what others hand over, each from the row on where its tokens lie.

    Nothing here reads a device's numbers on the host, as a collective in a graph may not.

    Args:
        part: [rows, columns] of this rank.
        handed: [ranks, most, columns]; live: bool [ranks, most], the rows of it that count.
        starts: int64 [ranks].
    """
    row = torch.arange(handed.shape[1], device=part.device)[None, :]
    beyond = len(part)  # one row more, for what no rank hands over
    places = torch.where(live, starts[:, None] + row, beyond).clamp(max=beyond)
    found = torch.cat((part, part.new_zeros(1, part.shape[1])))
    counted = torch.where(live[:, :, None], handed, torch.zeros_like(handed))
    found.index_add_(0, places.flatten(), counted.flatten(0, 1))
    return found[:beyond]


def rows_of_ranks(
    gathered: torch.Tensor, starts: torch.Tensor, sizes: Sequence[int]
) -> torch.Tensor:
    """[tokens of all ranks, columns] what was gathered, without the rows that pad it.

    Args:
        starts: [ranks] where the rows of each rank begin.
        sizes: how many each has.
    """
    parts = zip(starts.tolist(), sizes, strict=True)
    return torch.cat([gathered[start : start + rows] for start, rows in parts])
