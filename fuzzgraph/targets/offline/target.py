"""What every target on a released sglang is and refuses."""

from __future__ import annotations

from typing import Any

from fuzzgraph.capabilities import Capabilities, unsupported_setting
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine

__all__ = ["ReleasedTarget"]


class ReleasedTarget:
    """One mode of one runner or backend of the sglang release that this process holds."""

    name: str
    about: str
    """What is driven, in one line."""
    capabilities: Capabilities
    package = "sglang"
    """Released package that the engine comes in."""
    isolated = True
    """It runs in a process of its own: one process holds one release."""
    any_page_size = False
    """Whether pages of other sizes than `capabilities` draws are driven too."""

    @property
    def mode(self) -> Mode:
        """The mode that it captures graphs for; a server captures one."""
        mode: Mode = self.capabilities.modes[0]
        return mode

    def unsupported(self, config: EngineConfig) -> str | None:
        """Names the first setting that this target does not drive."""
        if config.modes != self.capabilities.modes:
            return f"captures {self.mode} graphs only, not {list(config.modes)}"
        sizes = self.capabilities.page_sizes
        if not self.any_page_size and config.page_size not in sizes:
            return f"page_size={config.page_size} is not driven, only {', '.join(map(str, sizes))}"
        return self._refused(config) or unsupported_setting(self.capabilities, config)

    def _refused(self, config: EngineConfig) -> str | None:
        """Why this engine cannot have a config that lies within its reach, in one line."""
        return None

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        """The engine's own runner, with pools and backend of this release.

        Raises:
            AdapterUnavailable: there is no sglang here, or it lacks what this target drives.
        """
        self.load()
        return self._session(config, graphs)

    def _session(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        raise NotImplementedError

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        raise NotImplementedError
