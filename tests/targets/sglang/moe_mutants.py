"""Planted bugs of sglang's routing and of its experts, each of them the change of one line.

Functions of the engine are changed only while it runs for the planted target: a worker of the tests
runs healthy ones too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.moe import MoeSession, MoeTarget
from fuzzgraph.targets.sglang.experts_model import Family
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.fused_experts import RECORDER
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_MOE = "sglang.srt.layers.moe"
_TOPK = f"{_MOE}.topk"
_DISPATCHER = f"{_MOE}.token_dispatcher.standard"
_RUNNER = f"{_MOE}.moe_runner.triton_utils"


class _Mutant(MoeSession):
    """Runs the engine with functions of one module changed."""

    place = _TOPK

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        found = engine_module(self.place)
        owner: Any = getattr(found, getattr(self, "kind", ""), found)
        with super().engine_runs(batch), replaced_names([owner], self._changed(owner)):
            yield

    def _changed(self, owner: Any) -> dict[str, Any]:
        raise NotImplementedError


class _Mask(_Mutant):
    """Changes what masks the ids of padded tokens."""

    def _changed(self, owner: Any) -> dict[str, Any]:
        return {"_mask_topk_ids_padded_region": self._mask}

    @staticmethod
    def _mask(topk_ids: torch.Tensor, count: torch.Tensor | None = None, fill: int = -1) -> None:
        raise NotImplementedError


class _NothingMasked(_Mask):
    """Padded tokens keep the experts that the router gave them."""

    @staticmethod
    def _mask(topk_ids: torch.Tensor, count: torch.Tensor | None = None, fill: int = -1) -> None:
        return


class _OneTooFew(_Mask):
    """The first padded token is not masked."""

    @staticmethod
    def _mask(topk_ids: torch.Tensor, count: torch.Tensor | None = None, fill: int = -1) -> None:
        if count is not None:
            rows = torch.arange(len(topk_ids))
            topk_ids.masked_fill_((rows > count)[:, None], fill)


class _FirstExpert(_Mask):
    """Padded tokens get expert 0, as on AMD's GPUs, but with their weights."""

    @staticmethod
    def _mask(topk_ids: torch.Tensor, count: torch.Tensor | None = None, fill: int = -1) -> None:
        if count is not None:
            rows = torch.arange(len(topk_ids))
            topk_ids.masked_fill_((rows >= count)[:, None], 0)


class _RowsCounted(_Mask):
    """The count of a verify is taken for one of rows."""

    @staticmethod
    def _mask(topk_ids: torch.Tensor, count: torch.Tensor | None = None, fill: int = -1) -> None:
        if count is not None:
            rows = torch.arange(len(topk_ids))
            topk_ids.masked_fill_((rows >= count // 3)[:, None], fill)


class _MaskedBeforeTheMap(_Mutant):
    """Ids of -1 are looked up in the map of local experts, whose last entry they find."""

    place = _DISPATCHER

    def _changed(self, owner: Any) -> dict[str, Any]:
        return {"_map_topk_ids_to_local_experts": lambda ids, local: local[ids.long()]}


class _CountOfTheGraph(MoeSession):
    """The runner counts the tokens of the graph, as a capture does."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly and self.runner.buffers.num_token_non_padded is not None:
            padded = self._padded_tokens(self.runner.padded_bs)
            self.runner.buffers.num_token_non_padded.fill_(padded)


class _Recorder(_Mutant):
    """Changes what counts the tokens of experts."""

    place = RECORDER
    kind = "_SelectExpertsSinglePassGatherer"


class _PaddedCounted(_Recorder):
    """An id of -1 counts for the first expert."""

    def _changed(self, owner: Any) -> dict[str, Any]:
        def count(gatherer: Any, layer_idx: int, topk_ids: torch.Tensor) -> None:
            ids = topk_ids.flatten().clamp(min=0).long()
            gatherer._data[layer_idx].scatter_add_(0, ids, torch.ones_like(ids).int())

        return {"on_select_experts": count}


class _NeverReset(_Recorder):
    """Counts go on from those of the last forward."""

    def _changed(self, owner: Any) -> dict[str, Any]:
        return {"reset": lambda gatherer: None}


class _OnlyFirstChoice(_Recorder):
    """Only the first expert of each token counts."""

    def _changed(self, owner: Any) -> dict[str, Any]:
        stock = owner.on_select_experts
        return {
            "on_select_experts": lambda self, layer_idx, topk_ids: stock(
                self, layer_idx, topk_ids[:, :1]
            )
        }


class _ShortBlocks(_Mutant):
    """The places of tokens by expert have no room for the block of what is masked."""

    place = f"{_RUNNER}.moe_align_block_size"

    def _changed(self, owner: Any) -> dict[str, Any]:
        stock = owner.sgl_moe_align_block_size

        def short(topk_ids: Any, experts: int, block: int, places: Any, *rest: Any) -> None:
            stock(topk_ids, experts, block, places[: topk_ids.numel()], *rest)

        return {"sgl_moe_align_block_size": short}


class _Block(MoeSession):
    """Changes the block of experts."""

    def _open_backend(self, runner: ModelRunner) -> Any:
        found = super()._open_backend(runner)
        self._plant(runner.model.block)
        return found

    def _plant(self, block: Any) -> None:
        raise NotImplementedError


class _NotNormalised(_Block):
    """Weights are parts of all experts, not of the chosen ones."""

    def _plant(self, block: Any) -> None:
        block.topk.topk_config.renormalize = False


class _ExpertsOfANeighbour(_Block):
    """The dispatcher takes this rank for the one behind it."""

    def _plant(self, block: Any) -> None:
        dispatcher = block.experts.dispatcher
        dispatcher.moe_ep_rank = (dispatcher.moe_ep_rank + 1) % dispatcher.moe_ep_size


class _WithoutBiases(_Mutant):
    """Products of the experts leave out their biases."""

    place = f"{_RUNNER}.fused_moe"

    def _changed(self, owner: Any) -> dict[str, Any]:
        stock = owner.invoke_fused_moe_kernel

        def bare(rows: Any, weights: Any, bias: Any, *rest: Any, **named: Any) -> None:
            stock(rows, weights, None, *rest, **named)

        return {"invoke_fused_moe_kernel": bare}


class _NotClamped(_Mutant):
    """What comes between the products has no limit."""

    place = f"{_RUNNER}.fused_moe"

    def _changed(self, owner: Any) -> dict[str, Any]:
        stock = owner.swiglu_gpt_oss_sigmoid_alpha
        return {"swiglu_gpt_oss_sigmoid_alpha": lambda x, alpha, _: stock(x, alpha, 1e4)}


class _RouterWithoutBias(_Block):
    """The router leaves out its bias."""

    def _plant(self, block: Any) -> None:
        block.router.bias = None


class _Planted(MoeTarget):
    def __init__(
        self,
        session: type[MoeSession],
        mode: Literal["decode", "target_verify"],
        family: Family,
    ) -> None:
        super().__init__("sglang-moe", mode, family)
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MoeSession:
        return self._session(config, graphs)


def _opened(
    session: type[MoeSession],
    mode: Literal["decode", "target_verify"] = "decode",
    family: Family = "qwen3",
) -> Callable[[], MoeTarget]:
    return lambda: _Planted(session, mode, family)


nothing_masked = _opened(_NothingMasked)
one_too_few = _opened(_OneTooFew)
first_expert = _opened(_FirstExpert)
rows_counted = _opened(_RowsCounted, "target_verify")
masked_before_the_map = _opened(_MaskedBeforeTheMap)
count_of_the_graph = _opened(_CountOfTheGraph)
padded_counted = _opened(_PaddedCounted)
never_reset = _opened(_NeverReset)
only_first_choice = _opened(_OnlyFirstChoice)
short_blocks = _opened(_ShortBlocks)
not_normalised = _opened(_NotNormalised)
experts_of_a_neighbour = _opened(_ExpertsOfANeighbour)
without_biases = _opened(_WithoutBiases, family="gpt-oss")
not_clamped = _opened(_NotClamped, family="gpt-oss")
router_without_bias = _opened(_RouterWithoutBias, family="gpt-oss")
