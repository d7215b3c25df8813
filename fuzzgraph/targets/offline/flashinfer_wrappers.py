"""Where FlashInfer is not installed, models of its wrappers stand under its names.

The models plan and run as FlashInfer does (`fuzzgraph.kernel_models.flashinfer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fuzzgraph.kernel_models import flashinfer
from fuzzgraph.kernel_models.flashinfer.planners import STANDS_FOR
from fuzzgraph.targets.offline.kernel_arguments import strict

__all__ = ["MODELS", "install_wrappers"]

MODELS: Mapping[str, Any] = {name: getattr(flashinfer, name) for name in flashinfer.__all__}
"""Name in FlashInfer -> its model."""


def install_wrappers(modules: Iterable[Any], stand_in: int, stands_for: int) -> None:
    """Give these modules of the engine the models where FlashInfer is not installed.

    Args:
        stand_in: bytes of the float workspace that the engine allocates here, kept small because
            guarded memory is compared at every step and no model reads it.
        stands_for: bytes that a server has, which plans are held to.
    """
    STANDS_FOR[stand_in] = stands_for
    for module in modules:
        for name, model in MODELS.items():
            if not hasattr(module, name):
                setattr(module, name, strict(model))
