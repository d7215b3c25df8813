"""The same engine with a bug that real ones had: padded rows keep the slots of the last batch."""

import block_engine as engine
from block_target import BlockSession, BlockTarget


class StaleInputs(engine.Inputs):
    def reset(self, padded: slice) -> None:
        self.lengths[padded] = 0
        self.block_tables[padded] = engine.SCRATCH_BLOCK


class StaleRunner(engine.DecodeRunner):
    inputs_class = StaleInputs


class StaleSession(BlockSession):
    runner_class = StaleRunner


class StaleTarget(BlockTarget):
    def open(self, config, graphs):
        return StaleSession(config, graphs)
