"""What every target on a released sglang is, and loads."""

from __future__ import annotations

from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.excuses import EXCUSES
from fuzzgraph.targets.sglang.release import SGLANG
from fuzzgraph.targets.sglang.runners.decode import runner_module
from fuzzgraph.targets.sglang.stubs.platform import platform_of_a_gpu


class SglangTarget(ReleasedTarget):
    """One mode of one runner or backend of the sglang release that this process holds."""

    package = "sglang"
    excuses = EXCUSES

    def modules(self) -> tuple[str, ...]:
        """Modules of the release that it drives."""
        return ()

    def load(self) -> None:
        SGLANG.load(*self.modules(), runner_module(), "sglang.srt.speculative.eagle_info")
        platform_of_a_gpu()
