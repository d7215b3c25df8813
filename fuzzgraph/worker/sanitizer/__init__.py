"""Runs one case under NVIDIA's compute-sanitizer, and reads what it reports of compiled kernels.

On a device kernels are compiled: no access of theirs is checked as those over lanes are. The tool
checks them from outside. A case is run once more, in a process of its own that the tool watches
from its start; the tool's report is read, and each address in it is looked up in the guarded memory
of that process.

`report` reads the text, `tool` knows the executable, `one_case` is the process that it watches,
`placing` looks addresses up and tells our own errors apart, `check` puts these together, `findings`
and `runner` make it a part of how cases are run.
"""

from __future__ import annotations

from fuzzgraph.worker.sanitizer.check import Sanitizer, SanitizerFailed
from fuzzgraph.worker.sanitizer.runner import SanitizingRunner
from fuzzgraph.worker.sanitizer.tool import require_tool

__all__ = ["Sanitizer", "SanitizerFailed", "SanitizingRunner", "require_tool"]
