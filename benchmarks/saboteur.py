"""A target that does to the harness what a broken engine does: dies, hangs, hogs, floods, lies.

Each plant has a trigger of its own in the case, so that it shrinks like any other bug, and shows in
decode steps only, for in an idle step it would be another finding; one shows in half of its runs
only. `PLANTED` is what a campaign has to find, each of them once.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.world import Batch

__all__ = ["FLAKY", "PLANTED", "Saboteur"]

PLANTED = {
    "ring": "writes one element past its buffer",
    "process: SIGSEGV in replay": "kills itself by SIGSEGV",
    "process: exit 7 in prepare": "leaves by os._exit",
    "process: hang in eager": "never returns",
    "process: memory in capture": "takes memory without end",
    "process: garbage": "writes garbage into the harness's own channel",
    "process: SIGABRT in replay": "aborts in half of its runs",
}
"""Buffer of the finding -> what was planted. Beside them it floods its output, which is no bug."""
FLAKY = frozenset({"process: SIGABRT in replay"})

_FLOOD_BYTES = 48 << 20


class _Session:
    pools = Pools()
    fields: tuple[Field, ...] = ()

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._ring = torch.zeros(16, dtype=torch.int32)

    @property
    def roots(self) -> Mapping[str, object]:
        return {"ring": self._ring}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return ()

    def keeps_outputs(self, mode: Mode) -> bool:
        return False

    def warm_up(self) -> None: ...

    def capture(self) -> None:
        if self._config.page_size == 32 and len(self._config.capture_bs) == 3:
            _hog()

    def prepare_replay(self, batch: Batch) -> None:
        if self._config.page_size == 3 and batch.step == 2 and batch.raw_bs:
            os._exit(7)
        if batch.raw_bs == 4:
            _flood()

    def replay(self, batch: Batch) -> None:
        page, longest = self._config.page_size, int(batch.seq_lens.max(initial=0))
        if page == 2 and batch.raw_bs == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if page == 16 and longest == 17 and batch.raw_bs != 5:
            _answer_garbage()
        if page == 64 and batch.raw_bs <= 2 and longest > 1 and random.random() < 0.5:
            os.abort()
        if page == 1 and batch.step == 1 and batch.raw_bs == 2:
            beyond = torch.as_strided(self._ring, (17,), (1,))
            beyond[16] = 7

    def eager(self, batch: Batch) -> None:
        if batch.raw_bs == 5 and batch.step == 0:
            for _ in itertools.count():
                pass

    def observe(self, batch: Batch) -> Observation:
        return Observation(batch.raw_bs, batch.raw_bs, batch.num_tokens, batch.num_tokens)

    def results(self) -> Mapping[str, torch.Tensor]:
        return {}

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        return {}

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {}

    def close(self) -> None: ...


class Saboteur:
    """The target; in a worker only."""

    name = "saboteur"
    isolated = True
    capabilities = Capabilities(page_sizes=(1, 2, 3, 16, 32, 64), max_batch=6, max_context_len=24)

    def unsupported(self, config: EngineConfig) -> str | None:
        return None

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        return _Session(config)


def _hog() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20) * 64))


def _flood() -> None:
    line = b"a line that nobody reads, again and again and again\n" * 1000
    for _ in range(_FLOOD_BYTES // len(line)):
        os.write(sys.stderr.fileno(), line)


def _answer_garbage() -> None:
    """Into every socket: one of them is the harness's."""
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptor = int(name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as channel:
                    channel.sendall(b'{"type": "Answer", "findings": "none at all"}\n\xff\x00\n')
        except OSError:
            continue
