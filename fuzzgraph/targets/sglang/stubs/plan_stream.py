"""A stream of its own for what the scheduler reserves for a verify (sglang dflash_info_v2.py).

A server takes it with `SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1`, which is off by default. Until it has
been waited for, work that it was given may run late, as `--overlap` has it run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.cuda_on_cpu import STREAMS
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.stubs.platform import in_environment

__all__ = ["plan_stream"]

_SWITCH = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
_STREAMS_ON_CPU = Stub(**STREAMS)
"""In the place of the module of torch by which the engine asks its device for streams."""


@contextlib.contextmanager
def plan_stream(config: EngineConfig, device: str) -> Iterator[None]:
    """Around the engine's `prepare_for_decode`: it reserves on a stream of its own, where the
    config says so.

    Args:
        device: of the engine.
    """
    if not config.plan_stream:
        yield
        return
    asked = {} if device == "cuda" else {"get_device_module": lambda *_: _STREAMS_ON_CPU}
    with in_environment({_SWITCH: "1"}, replaced_names([torch], asked)):
        yield
