"""The verify of DSpark's blocks, and what follows it in the same step: targets
`sglang-dspark-verify-*`.

A server verifies whole blocks unless it is told to cut them (`SGLANG_RAGGED_VERIFY_MODE=static`),
on graphs of one row for each request. Then accepting drafts, the lengths behind them, and what the
draft model keeps of the tokens that stay are made behind the replay, by kernels of DSpark's own.
"""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import NotInRelease
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend
from fuzzgraph.targets.sglang.excuses.blocks import DSPARK_VERIFY_EXCUSES
from fuzzgraph.targets.sglang.release import is_before
from fuzzgraph.targets.sglang.runners.dflash_verify import BlockVerifySession, BlockVerifyTarget
from fuzzgraph.targets.sglang.stubs.dspark_worker import WORKER, DSparkVerifyWorker

_DRAWS_IN_GRAPHS = (0, 5, 17)


class DSparkVerifyTarget(BlockVerifyTarget):
    """DSpark's verify on one backend of the sglang release that this process holds."""

    algorithm = "DSPARK"
    worker = WORKER
    excuses = DSPARK_VERIFY_EXCUSES

    def __init__(self, name: str, backend: str) -> None:
        super().__init__(name, backend)
        self.capabilities = self.capabilities.replace(samplings=("greedy", "draft"))

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DSparkVerifySession:
        return DSparkVerifySession(config, graphs, self.backend)


class DSparkVerifySession(BlockVerifySession):
    """DSpark's worker, its target model's runner, and the backend on which that model attends."""

    algorithm = "DSPARK"
    worker = DSparkVerifyWorker

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: AttentionBackend) -> None:
        if config.sampling != "greedy" and is_before(_DRAWS_IN_GRAPHS):
            # Before, drafts of such batches are drawn behind the graph, which has them here.
            raise NotInRelease("drafts that are drawn are verified from sglang 0.5.17 on")
        super().__init__(config, graphs, kind)
