"""`--attention-backend flashmla`: FlashMLA.

Real: `FlashMLABackend` and the Triton kernel that builds its page table. Modelled: the planner of
tiles, and the attention that follows its plan.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.kernel_models import flash_mla
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
    latent_table,
)
from fuzzgraph.targets.sglang.release import engine_module, has_module

_MODULE = f"{ATTENTION}.flashmla_backend"
_WRAPPER = "sglang.kernels.ops.attention.flash_mla_interface"
"""The engine's own functions around FlashMLA's package, from 0.5.23 on."""

_PACKAGE = Stub(
    get_mla_decoding_metadata=flash_mla.get_mla_metadata,
    flash_mla_with_kvcache=flash_mla.flash_mla_with_kvcache,
    # FlashMLA 2026, flash_mla_interface.py: an empty plan, which the first decode fills
    get_mla_metadata=lambda *_, **__: (flash_mla.FlashMLASchedMeta(), None),
)


def _before_the_wrapper(runner: Any) -> None:
    """Up to 0.5.20 the backend calls `sgl_kernel`'s functions by its own names."""
    if not has_module(_WRAPPER) and runner.device == "cpu":
        for name in ("get_mla_metadata", "flash_mla_with_kvcache"):
            setattr(engine_module(_MODULE), name, getattr(flash_mla, name))


FLASHMLA = AttentionBackend(
    name="flashmla",
    places=((_MODULE, "FlashMLABackend"),),
    attentions=("mla",),
    page_sizes=(flash_mla.FLASH_MLA_PAGE,),  # PAGE_SIZE in the backend's module
    fields=("page_table",),
    stood_in_for=(
        "the attention kernel and the planner of tiles, by models",
        "the number of cores",
    ),
    held=latent_table,
    read=attributes(page_table="block_kv_indices"),
    adapt=_before_the_wrapper,
    kernels=(
        (_WRAPPER, "flash_mla", _PACKAGE),
        (_WRAPPER, "FlashMLASchedMeta", flash_mla.FlashMLASchedMeta),
    ),
    rope="joined",
    beside=("fa3", "flashinfer", "triton"),
)

target = FLASHMLA.target
