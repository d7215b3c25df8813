"""The memory of a kernel's model in a script, as functions that are embedded in it."""

from __future__ import annotations

from fuzzgraph.kernel_models.memory import KernelMemory, Stray


def kernel_memory(kernel: str) -> KernelMemory:
    """What the model of a kernel reads and writes by."""
    return KernelMemory(ScriptReport(kernel))


class ScriptReport:
    """Tells on the terminal what a launch did wrong."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def stray(self, found: Stray) -> None:
        """An access missed its argument."""
        print(
            f"  {self.kernel}: {found.kind} outside {found.argument}, at {found.offsets.tolist()}"
        )

    def misuse(self, argument: str, rule: str, got: str) -> None:
        """An argument's content breaks a rule of the kernel."""
        print(f"  {self.kernel}: {rule}; got {got}")
