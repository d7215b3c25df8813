"""A target that breaks on demand: the head count of a case's config says how.

Imported by name in the child, which finds it by the folder it is given as a path.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.reach import Reach
from fuzzgraph.world import Batch

HEALTHY, CRASHES, HANGS, LEAVES, REFUSES, NOISY, HARNESS_FAULT = range(1, 8)


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

    def eager(self, batch: Batch) -> None: ...

    def observe(self, batch: Batch) -> Observation:
        return Observation(batch.raw_bs, batch.raw_bs, batch.num_tokens, batch.num_tokens)

    def results(self) -> Mapping[str, torch.Tensor]:
        return {}

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        return {}

    def capture_values(self, batch: Batch) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        return {}

    def close(self) -> None: ...


class FragileTarget:
    name = "fragile"
    reach = Reach()

    def unsupported(self, config: EngineConfig) -> str | None:
        if config.num_q_heads == HARNESS_FAULT:
            raise KeyError("a mistake in the harness")
        return None

    def open(self, config: EngineConfig, graphs: GraphEngine) -> FragileSession:
        if config.num_q_heads == REFUSES:
            raise AdapterUnavailable("the engine 'fragile' is not installed. Install it.")
        return FragileSession(config.num_q_heads)


class DiesWhileOpening(FragileTarget):
    def load(self) -> NoReturn:
        print("a library is missing", file=sys.stderr, flush=True)
        os._exit(1)
