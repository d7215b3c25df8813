"""One opened built-in engine: its pools, its runners, and what the harness asks of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.fields import declared_fields
from fuzzgraph.targets.builtin.metadata.builder import Tables
from fuzzgraph.targets.builtin.pools import PagedKVPool
from fuzzgraph.targets.builtin.runners.base import GraphRunner, RunnerContext
from fuzzgraph.targets.builtin.second_layer import prefixed, second_layer
from fuzzgraph.world import Batch


def _plane_names(kv: PagedKVPool) -> dict[str, torch.Tensor]:
    return dict(zip(("kv_pool.k", "kv_pool.v"), kv.planes, strict=False))


class BuiltinSession:
    """Implements `ports.Session`."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, components: Components) -> None:
        self.config = config
        device = graphs.device
        self.req_to_token = components.req_to_token(config, device)
        self.kv = components.kv(config, device)
        self.state = components.state(config, device) if config.recurrent_state else None
        self.encoder = components.encoder(config, device) if config.max_encoder_len else None
        self.local = components.local(config)
        self.model = components.model(config, self.kv, self.state, self.local, device)
        self.second = second_layer(config, components, self.local, device)
        self.input_pool = components.input_pool()
        self.runners: dict[Mode, GraphRunner] = {
            mode: self._open_runner(mode, graphs, components) for mode in config.modes
        }
        self.active = self.runners[config.modes[0]]
        self.fields = declared_fields(config)
        self.pools = Pools(
            req_to_token=self.req_to_token.table,
            kv_planes=self.kv.planes,
            encoder_to_token=None if self.encoder is None else self.encoder.table,
            state=None if self.state is None else self.state.state,
            more_groups=() if self.second is None else (self.second.pools,),
        )
        self._roots = self._name_roots()

    def _open_runner(self, mode: Mode, graphs: GraphEngine, components: Components) -> GraphRunner:
        prefill, draft = mode == "prefill", mode == "draft"
        context = RunnerContext(
            self.config,
            graphs,
            self.model,
            Tables(self.req_to_token, self.kv, self.encoder),
            self.input_pool,
            self.local,
            components.slots,
            components.prefill_registry if prefill else components.decode_registry,
            components.draft_builder if draft else components.builder,
            components.builder_components,
            self.second,
        )
        return components.runner(mode, self.config)(context)

    @property
    def roots(self) -> Mapping[str, object]:
        return self._roots

    def _name_roots(self) -> dict[str, object]:
        """Buffers under the names that findings should use, then the objects that hold them."""
        roots: dict[str, object] = {"req_to_token": self.req_to_token.table}
        roots |= _plane_names(self.kv)
        if self.second is not None:
            tables = self.second.tables
            roots |= prefixed(
                {"req_to_token": tables.req_to_token.table, **_plane_names(tables.kv)}
            )
        roots |= {"encoder_to_token": self.pools.encoder_to_token, "state_pool": self.pools.state}
        for mode, runner in self.runners.items():
            roots |= {f"{mode}.{name}": found for name, found in runner.named_buffers().items()}
        roots |= {str(mode): runner for mode, runner in self.runners.items()}
        pools = (self.req_to_token, self.kv, self.state, self.encoder, self.second)
        return roots | {"pools": pools}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return self._runner(mode).promised_outputs()

    def keeps_outputs(self, mode: Mode) -> bool:
        return self._runner(mode).keeps_outputs()

    def warm_up(self) -> None:
        for runner in self.runners.values():
            runner.warm_up()

    def capture(self) -> None:
        for runner in self.runners.values():
            runner.capture()

    def prepare_replay(self, batch: Batch) -> None:
        self.active = self._runner(batch.mode)
        self.active.prepare_replay(batch)

    def replay(self, batch: Batch) -> None:
        self.active.replay(batch)

    def eager(self, batch: Batch) -> None:
        self.active = self._runner(batch.mode)
        self.active.eager(batch)

    def observe(self, batch: Batch) -> Observation:
        return self.active.observe(batch)

    def results(self) -> Mapping[str, torch.Tensor]:
        return self.active.outputs

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        return {
            f"{mode}.{name}": found
            for mode, runner in self.runners.items()
            for name, found in runner.captured_addresses().items()
        }

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return self._runner(batch.mode).capture_values(batch)

    def close(self) -> None:
        """Drop graphs and buffers."""
        self.runners.clear()

    def _runner(self, mode: Mode) -> GraphRunner:
        """The runner of a mode; an idle step runs on the first one."""
        return self.runners[self.config.modes[0] if mode == "idle" else mode]
