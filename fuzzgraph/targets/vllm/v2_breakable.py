"""The V2 runner with graphs that the engine breaks at attention while it captures them."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.piecewise_session import Breakable
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.v2_session import Dispatched, V2RunnerSession

_MONITOR = "vllm.compilation.monitor"


class V2BreakableSession(Breakable, V2RunnerSession):
    """Pieces of mixed batches, full graphs of decodes; pieces are known by their tokens."""

    def capture(self) -> None:
        # As in a new process: V1 forbids captures once it has made its own, V2 asks nobody.
        monitor = engine_module(_MONITOR)
        with replaced_names([monitor], {"cudagraph_capturing_enabled": True}):
            super().capture()

    def _in_pieces(self) -> bool:
        return isinstance(self._graph, int)

    def _tokens_of_pieces(self) -> int:
        assert isinstance(self._graph, int)
        return self._graph

    def _read_dispatched(self, chosen: Any) -> Dispatched:
        if chosen.cg_mode.name == "PIECEWISE":
            return Dispatched(0, chosen.num_tokens, chosen.num_tokens)
        return super()._read_dispatched(chosen)

    def _spy(self) -> None:
        super()._spy()
        manager = self.runner.cudagraph_manager
        run = manager.run_pw_graph

        def ran(model: Any, inputs: dict[str, Any]) -> Any:
            if not self.capturing:
                return run(model, inputs)
            self._graph = len(inputs["input_ids"])
            self._cuda_graphs.begin_forward(self._graph)
            made = run(model, inputs)
            self._remember_read(self._graph)
            return made

        manager.run_pw_graph = ran

    def _stored_by(self) -> dict[str, torch.Tensor]:
        return {"slot_mapping": self.runner.block_tables.slot_mappings[0]}
