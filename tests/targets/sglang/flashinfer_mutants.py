"""Engines that call FlashInfer with one wrong argument; opened by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.kernel_models import flashinfer
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend, BackendTarget
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from fuzzgraph.targets.sglang.backends.flashinfer_mla import FLASHINFER_MLA
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions

__all__ = [
    "latent_rows_as_they_are_stored",
    "latent_verify_bidirectional",
    "mask_of_the_next_key",
    "plan_by_fewer_keys",
    "scales_swapped",
]


def _with(kind: AttentionBackend, name: str, wrong: Any, mode: Mode) -> BackendTarget:
    """The backend with a wrong caller in the place of one of FlashInfer's names."""
    kernels = tuple(
        (holder, held, wrong if held == name else model) for holder, held, model in kind.kernels
    )
    return replace(kind, kernels=kernels).target(f"sglang-{kind.name}", mode)


def plan_by_fewer_keys() -> BackendTarget:
    """A decode's replays are planned by lengths that leave out the newest key of the last row."""

    def plan(*args: Any, global_override_indptr_cpu: torch.Tensor, **named: Any) -> None:
        host = global_override_indptr_cpu.clone()
        host[-1] -= 1
        named["global_override_indptr_cpu"] = host
        flashinfer.fast_decode_plan(*args, **named)

    return _with(FLASHINFER, "fast_decode_plan", plan, "decode")


def scales_swapped() -> BackendTarget:
    """Attention scales FP8 keys by the factor of values, and values by that of keys."""
    target = FLASHINFER.target("sglang-flashinfer", "decode")
    open_session = target.open

    def open_swapped(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        layer = session._attention.layer
        swapped = layer.v_scale_float, layer.k_scale_float
        layer.k_scale_float, layer.v_scale_float = swapped
        return session

    target.open = open_swapped  # type: ignore[method-assign]
    return target


class _Shifted(flashinfer.BatchPrefillWithPagedKVCacheWrapper):
    def plan(self, *args: Any, custom_mask: torch.Tensor | None = None, **named: Any) -> None:
        mask = None if custom_mask is None else custom_mask.roll(1)
        named["custom_mask"] = mask
        super().plan(*args, **named)

    begin_forward = plan


def mask_of_the_next_key() -> BackendTarget:
    """A verify's mask is one key too far to the right."""
    name = "BatchPrefillWithPagedKVCacheWrapper"
    return _with(FLASHINFER, name, _Shifted, "target_verify")


class _Bidirectional(flashinfer.BatchMLAPagedAttentionWrapper):
    def run(self, *args: Any, **named: Any) -> Any:
        self._causal = False
        return super().run(*args, **named)


def latent_verify_bidirectional() -> BackendTarget:
    """A verify over latent rows whose tokens see the drafts behind them."""
    name = "BatchMLAPagedAttentionWrapper"
    return _with(FLASHINFER_MLA, name, _Bidirectional, "target_verify")


def latent_rows_as_they_are_stored() -> BackendTarget:
    """A decode hands latent rows in FP8 to a kernel of another dtype."""

    def change(session: Any) -> None:
        rows = ".get_key_buffer(layer.layer_id)"
        change_line(session.backend, "forward_decode", f"{rows}.to(q.dtype)", rows)

    return with_changed_sessions(FLASHINFER_MLA.target("sglang-flashinfer_mla", "decode"), change)
