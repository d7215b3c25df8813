"""The target that a setup names, to record it once more."""

from __future__ import annotations

from fuzzgraph.errors import UsageError
from fuzzgraph.ports import Target
from fuzzgraph.run.events import Setup


def target_of(setup: Setup) -> Target:
    """Open what the setup names; a fault is planted in the built-in engine.

    Raises:
        UsageError: an unknown target or fault, or a target of one's own that cannot be imported.
    """
    if setup.fault:
        return _faulty(setup.fault)
    from fuzzgraph.targets import open_target

    return open_target(setup.target)


def _faulty(name: str) -> Target:
    from fuzzgraph.targets.builtin import BuiltinTarget
    from fuzzgraph.targets.builtin.faults import FAULTS

    for fault in FAULTS:
        if fault.name == name:
            return BuiltinTarget(fault.components)
    raise UsageError(f"fault={name!r} is unknown. 'fuzzgraph faults --list' prints the names.")
