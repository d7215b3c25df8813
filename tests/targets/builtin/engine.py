"""Opens the built-in engine in guarded memory, lays worlds and runs steps, without oracles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.content import content_for
from fuzzgraph.graphs import open_engine
from fuzzgraph.layout import plan
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.observation import Observation
from fuzzgraph.reference import expected, yardstick
from fuzzgraph.targets.builtin import BuiltinTarget, Components
from fuzzgraph.targets.builtin.session import BuiltinSession
from fuzzgraph.world import Batch, IntArray

torch.set_num_threads(1)


def rows(
    lens: tuple[int, ...],
    mode: Mode = "decode",
    new: tuple[int, ...] = (),
    encoder: tuple[int, ...] = (),
    draft_tokens: int = 2,
) -> tuple[BatchRow, ...]:
    """One row per length; requests 0, 1, 2, ..."""
    each = {"decode": 1, "draft": 0, "target_verify": draft_tokens}.get(mode, 1)
    return tuple(
        BatchRow(
            request=i,
            seq_len=length,
            new_tokens=new[i] if new else each,
            encoder_len=encoder[i] if encoder else 0,
        )
        for i, length in enumerate(lens)
    )


def case_of(config: EngineConfig, *steps: ReplayStep, seed: int = 7) -> Case:
    return validate(
        Case(schema_version=1, config=config, steps=steps, seed=seed, page_order="shuffled")
    )


@dataclass
class Bench:
    """One opened session."""

    config: EngineConfig
    components: Components = field(default_factory=Components)

    def __post_init__(self) -> None:
        self.memory = GuardedMemory(torch.device("cpu"), tail_factor=self.config.page_size)
        graphs = open_engine("recorder", self.memory)
        with self.memory.intercept("engine"):
            self.session: BuiltinSession = BuiltinTarget(self.components).open(self.config, graphs)
        with self.memory.intercept("scratch"):
            self.session.warm_up()
        with self.memory.intercept("engine"):
            self.session.capture()

    def lay(self, batch: Batch) -> None:
        """What was there before the step: maps, history, encoder KV, states."""
        pools, content = self.session.pools, content_for(self.config)
        assert pools.req_to_token is not None
        _map(pools.req_to_token, batch, batch.kv_slots.values, batch.seq_lens)
        past = _history(batch)
        if past.any():
            planes = content.kv_planes(
                batch.kv_tokens.values[past], batch.kv_positions.values[past]
            )
            _put(pools.kv_planes, batch.kv_slots.values[past], planes)
        if pools.encoder_to_token is not None and len(batch.encoder_slots.values):
            _map(pools.encoder_to_token, batch, batch.encoder_slots.values, batch.encoder_lens)
            planes = content.encoder_planes(batch.encoder_tokens.values)
            _put(pools.kv_planes, batch.encoder_slots.values, planes)
        if pools.state is not None and batch.raw_bs:
            pools.state[torch.from_numpy(batch.state_slots)] = content.state_rows(batch)

    def replay(self, batch: Batch) -> Observation:
        self.lay(batch)
        self.session.prepare_replay(batch)
        self.session.replay(batch)
        return self.session.observe(batch)

    def eager(self, batch: Batch) -> Observation:
        self.lay(batch)
        self.session.eager(batch)
        return self.session.observe(batch)

    def run(self, case: Case) -> Iterator[tuple[Batch, Observation]]:
        for batch in plan(case):
            yield batch, self.replay(batch)

    def check(self, case: Case) -> list[Observation]:
        """Replay every step; live rows must equal the truth and eager, red zones must stand."""
        seen = []
        for batch, replayed in self.run(case):
            agrees_with_truth(batch, self.config, replayed)
            eager = self.eager(batch)
            agrees_with_truth(batch, self.config, eager)
            assert self.memory.zones_intact(), self.memory.zone_hits("replay")
            seen.append(replayed)
        return seen


def agrees_with_truth(batch: Batch, config: EngineConfig, seen: Observation) -> None:
    """Live rows of every output against float64, within FlashAttention's rule."""
    if not batch.raw_bs:
        return
    truth, plain = expected(batch, config), yardstick(batch, config)
    assert "attention" in seen.outputs
    for name, shown in seen.outputs.items():
        want = truth.outputs[name]
        got = shown[: len(want)]
        assert got.shape == want.shape, (name, got.shape, want.shape)
        if not want.numel():
            continue
        error = (got.double() - want.double()).abs().max()
        slack = torch.finfo(got.dtype).eps * truth.value_bound if got.is_floating_point() else 0.0
        if name in plain:
            slack += 2 * float((plain[name].double() - want.double()).abs().max())
        assert error <= slack, (name, batch.mode, float(error), slack)


def _history(batch: Batch) -> npt.NDArray[np.bool_]:
    lens = np.diff(batch.kv_slots.offsets)
    place = np.arange(len(batch.kv_slots.values)) - np.repeat(batch.kv_slots.offsets[:-1], lens)
    past: npt.NDArray[np.bool_] = place < np.repeat(batch.cached_lens, lens)
    return past


def _map(table: torch.Tensor, batch: Batch, slots: IntArray, lens: IntArray) -> None:
    start = 0
    for row, length in zip(batch.req_pool_indices.tolist(), lens.tolist(), strict=True):
        values = torch.from_numpy(slots[start : start + length])
        table[row, :length] = values.to(table.dtype)
        start += length


def _put(
    planes: tuple[torch.Tensor, ...], slots: IntArray, values: tuple[torch.Tensor, ...]
) -> None:
    index = torch.from_numpy(slots)
    for plane, rows_of in zip(planes, values, strict=True):
        plane.view(torch.uint8)[index] = rows_of.view(torch.uint8)
