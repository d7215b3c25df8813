"""Targets that come with FuzzGraph, by name; the module of one is imported when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzgraph.ports import Target  # needs torch, the names of targets do not


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """One row of a package's `TARGETS`."""

    name: str
    module: str
    """Dotted, without `fuzzgraph.targets.`."""
    factory: str
    """Called with the name and `arguments`, all by keyword."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    releases: str = ""
    """Releases of the engine that have what is driven, e.g. '0.5.12 to 0.5.19'; '' for all."""

    def open(self) -> Target:
        """Import the module and make the target.

        Raises:
            AdapterUnavailable: its engine is not installed.
        """
        factory = getattr(import_module(f"fuzzgraph.targets.{self.module}"), self.factory)
        made: Target = factory(name=self.name, **self.arguments)
        return made
