"""Planted bugs of vLLM's latent attention, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import TritonMlaTarget


class _TablesElsewhere(RunnerSession):
    """The builder hands over a table of its own, made anew for each batch."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def copied(*args: Any, **kwargs: Any) -> Any:
            built = build(*args, **kwargs)
            built.decode.block_table = built.decode.block_table.clone()
            return built

        return super()._kept(copied)


class _LatentsInTheNextSlot(RunnerSession):
    """New latent rows are stored one slot behind their own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        impl = self.model.attn.impl
        store = impl.do_kv_cache_update

        def behind(latent: Any, rotary: Any, cache: Any, slots: Any, *more: Any) -> None:
            store(latent, rotary, cache, slots + 1, *more)

        impl.do_kv_cache_update = behind


def _planted(session: type[RunnerSession]) -> TritonMlaTarget:
    target = TritonMlaTarget("vllm-triton-mla")
    target.session = session
    return target


def tables_elsewhere() -> TritonMlaTarget:
    return _planted(_TablesElsewhere)


def latents_in_the_next_slot() -> TritonMlaTarget:
    return _planted(_LatentsInTheNextSlot)
