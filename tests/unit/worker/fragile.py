"""A target that breaks on demand: the head count of a case's config says how.

Imported by name in the child, which finds it by the folder it is given as a path.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.world import Batch

HEALTHY, CRASHES, HANGS, LEAVES, REFUSES, NOISY, HARNESS_FAULT = range(1, 8)
DEVICE_FAULT, ABORTS, REFUSED_LAUNCH, KILLED_TWICE, ALWAYS_KILLED = range(8, 13)
UNSERVED_PAGES = 65
_ILLEGAL = "CUDA error: an illegal memory access was encountered"
_APERTURE = (
    "Callback: Queue 0x7ef728200000 aborting with error : "
    "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the "
    "largest legal address. code: 0x29"
)


_MARK = Path(os.environ.get("FRAGILE_MARK", os.devnull))
"""Grows by a byte each time the child is killed."""


class FragileSession:
    pools = Pools()
    fields: tuple[Field, ...] = ()

    def __init__(self, behaviour: int) -> None:
        self._behaviour = behaviour

    @property
    def roots(self) -> Mapping[str, object]:
        return {}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return ()

    def keeps_outputs(self, mode: Mode) -> bool:
        return False

    def warm_up(self) -> None: ...

    def capture(self) -> None:
        if self._behaviour == LEAVES:
            os._exit(7)

    def prepare_replay(self, batch: Batch) -> None:
        if self._behaviour == NOISY:
            print('{"type": "Ready"}', flush=True)
            print("noise on stderr", file=sys.stderr)

    def replay(self, batch: Batch) -> None:
        if self._behaviour == CRASHES and batch.step == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._behaviour == HANGS:
            time.sleep(600)
        if self._behaviour == DEVICE_FAULT:
            FragileTarget.device_lost = True
            raise RuntimeError(_ILLEGAL)
        if self._behaviour == ABORTS:
            print(_APERTURE, file=sys.stderr, flush=True)
            os.abort()
        if self._behaviour == REFUSED_LAUNCH:
            raise RuntimeError(
                "HIP error: no kernel image is available for execution on the device"
            )
        if self._behaviour == KILLED_TWICE and _kills() < 2:
            with _MARK.open("ab") as mark:
                mark.write(b"x")
            os.kill(os.getpid(), signal.SIGKILL)
        if self._behaviour == ALWAYS_KILLED:
            os.kill(os.getpid(), signal.SIGKILL)

    def eager(self, batch: Batch) -> None: ...

    def observe(self, batch: Batch) -> Observation:
        return Observation(batch.raw_bs, batch.raw_bs, batch.num_tokens, batch.num_tokens)

    def results(self) -> Mapping[str, torch.Tensor]:
        return {}

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        return {}

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {}

    def close(self) -> None: ...


def _kills() -> int:
    return _MARK.stat().st_size if _MARK.exists() else 0


class FragileTarget:
    name = "fragile"
    capabilities = Capabilities()
    device_lost = False

    def probe(self) -> None:
        if self.device_lost:
            raise RuntimeError(_ILLEGAL)

    def unsupported(self, config: EngineConfig) -> str | None:
        if config.num_q_heads == HARNESS_FAULT:
            raise KeyError("a mistake in the harness")
        return None

    def unserved(self, config: EngineConfig) -> str | None:
        return "no server starts like this" if config.kv_pool_pages == UNSERVED_PAGES else None

    def open(self, config: EngineConfig, graphs: GraphEngine) -> FragileSession:
        if config.num_q_heads == REFUSES:
            raise AdapterUnavailable("the engine 'fragile' is not installed. Install it.")
        return FragileSession(config.num_q_heads)


class DiesWhileOpening(FragileTarget):
    def load(self) -> NoReturn:
        print("a library is missing", file=sys.stderr, flush=True)
        os._exit(1)
