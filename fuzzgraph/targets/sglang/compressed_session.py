"""What sessions on DeepSeek V4's layers do alike: what a step leaves in compressors is judged."""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.compressor_layer import promised_of_compressor
from fuzzgraph.targets.sglang.compressor_memory import CompressorMemory
from fuzzgraph.targets.sglang.runner_session import RunnerSession
from fuzzgraph.world import Batch


class CompressedSession(RunnerSession):
    """Comes before the session of a runner among its bases."""

    _config: EngineConfig
    _compressor: CompressorMemory
    _batch: Batch

    def _write_past(self, batch: Batch) -> None:
        super()._write_past(batch)
        self._compressor.begin()
        self._batch = batch

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        found = super().promised_outputs(mode)
        return (*found, *promised_of_compressor(self._config)) if found else ()

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        found = super().shown_outputs()
        return {**found, **self._compressor.outputs(self._batch)} if found else {}
