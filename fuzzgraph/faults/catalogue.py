"""The planted faults by name, and the engine with one of them in it."""

from __future__ import annotations

from fuzzgraph.errors import UsageError
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets.builtin.faults import FAULTS as PLANTED
from fuzzgraph.targets.builtin.faults import Fault
from fuzzgraph.targets.builtin.target import BuiltinTarget

FAULTS: dict[str, Fault] = {fault.name: fault for fault in PLANTED}
"""Name -> fault, in the order of the report."""


def fault_named(name: str) -> Fault:
    """Look a fault up.

    Raises:
        UsageError: no fault has that name; the message says where the names are.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(
            f"fault={name!r} is unknown. 'fuzzgraph faults --list' prints the {len(FAULTS)} names."
        )
    return fault


def target_with(fault: Fault) -> BuiltinTarget:
    """The built-in engine with one fault in it; it goes by the healthy engine's name."""
    return BuiltinTarget(fault.components)


def setup_of(fault: Fault) -> Setup:
    """What a case of the fault is run on."""
    return Setup(fault=fault.name, overlap=bool(fault.overlap))


def healthy_twin(fault: Fault) -> BuiltinTarget:
    """The engine that the fault was planted in."""
    return BuiltinTarget(overlap=fault.overlap)


def open_fault(name: str) -> BuiltinTarget:
    """The built-in engine with the fault of that name.

    Raises:
        UsageError: no fault has that name.
    """
    return target_with(fault_named(name))
