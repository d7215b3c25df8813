"""Short convolutions of decodes by the kernel that a server with CUDA has for them, here its model.

Without a GPU the engine's own `causal_conv1d_update` falls back to a kernel in Triton, which
servers take on other devices.
"""

from __future__ import annotations

import contextlib

import torch

from fuzzgraph.kernel_models.causal_conv1d import causal_conv1d_update
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["convolves_as_on_cuda", "put_convolution"]

_WRAPPERS = "sglang.srt.layers.attention.mamba.causal_conv1d"
_HAS_KERNEL = ("_HAS_CONV1D_KERNEL", "_HAS_SGL_KERNEL")
"""By which they choose; the latter up to 0.5.17."""


def put_convolution() -> None:
    """Put the model where the engine's wrapper looks its compiled kernel up; once per process."""
    if not torch.cuda.is_available():
        put_model(engine_module(_WRAPPERS), "causal_conv1d_update_kernel", causal_conv1d_update)


def convolves_as_on_cuda() -> contextlib.AbstractContextManager[None]:
    """Around the engine's code: its wrapper takes the compiled kernel."""
    return replaced_names([engine_module(_WRAPPERS)], dict.fromkeys(_HAS_KERNEL, True))
