"""What the engine hands to torch's compiler when it is imported is compiled when it is called."""

from __future__ import annotations

import subprocess
import sys

DECORATES = """
import sys, torch
from fuzzgraph.targets.offline.lazy_compile import compile_at_first_call
{wait}
seen = []

def backend(graph, inputs):
    seen.append(graph)
    return graph.forward

@torch.compile(backend=backend)
def doubled(x):
    "Twice."
    return x * 2

@torch.compiler.disable
def plain(x):
    return x + 1

@torch.compiler.disable(recursive=False)
def with_options(x):
    return x - 1

early = "torch._dynamo" in sys.modules
one = torch.ones(1)
results = doubled(one).item(), doubled(one).item(), plain(one).item(), with_options(one).item()
print(early, results, len(seen), doubled.__name__, doubled.__doc__)
"""


def printed(wait: str) -> str:
    command = [sys.executable, "-c", DECORATES.format(wait=wait)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_compiler_is_loaded_and_used_at_the_first_call() -> None:
    assert printed("compile_at_first_call()") == "False (2.0, 2.0, 2.0, 0.0) 1 doubled Twice."


def test_without_it_a_decorator_loads_the_compiler() -> None:
    assert printed("") == "True (2.0, 2.0, 2.0, 0.0) 1 doubled Twice."
