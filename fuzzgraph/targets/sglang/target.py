"""What every target on a released sglang is, and loads."""

from __future__ import annotations

from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.excuses.decode import EXCUSES
from fuzzgraph.targets.sglang.release import SGLANG
from fuzzgraph.targets.sglang.runners.decode import runner_module
from fuzzgraph.targets.sglang.stubs.platform import platform_of_a_gpu

STOOD_IN_FOR = (
    "distributed groups (one process is the case's rank)",
    "the device's graph (the graph engine captures)",
    "the model runner, whose constructor loads a model",
)
"""In every target, see `stubs/`."""


class SglangTarget(ReleasedTarget):
    """One mode of one runner or backend of the sglang release that this process holds."""

    package = "sglang"
    excuses = EXCUSES
    also_stood_in_for: tuple[str, ...] = ()
    """What is in this target, beyond `STOOD_IN_FOR`."""

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        return (*STOOD_IN_FOR, *self.also_stood_in_for)

    def modules(self) -> tuple[str, ...]:
        """Modules of the release that it drives."""
        return ()

    def load(self) -> None:
        SGLANG.load(*self.modules(), runner_module(), "sglang.srt.speculative.eagle_info")
        platform_of_a_gpu()
