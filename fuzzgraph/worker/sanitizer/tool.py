"""The executable of compute-sanitizer: where it is, and how it is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuzzgraph.accesses import SanitizerTool
from fuzzgraph.errors import AdapterUnavailable

_NAME = "compute-sanitizer"
_ROOTS = ("CUDA_HOME", "CUDA_PATH")
_HELP_SECONDS = 60.0
_PRINTED = 200
"""Errors that one report holds."""


def require_tool(tool: SanitizerTool) -> Path:
    """The executable.

    Raises:
        AdapterUnavailable: there is none here, or torch is built for a device without one.
    """
    import torch

    if torch.version.hip:
        raise AdapterUnavailable(
            f"sanitizer={tool!r}: compute-sanitizer is NVIDIA's, and torch {torch.__version__} is "
            f"built for ROCm (HIP {torch.version.hip}), which has no such tool. Drop --sanitizer."
        )
    folders = [Path(os.environ[root], "bin") for root in _ROOTS if os.environ.get(root)]
    for path in (None, *map(str, folders)):
        if (found := shutil.which(_NAME, path=path)) is not None:
            return Path(found).absolute()
    raise AdapterUnavailable(
        f"sanitizer={tool!r}: {_NAME} is neither on PATH nor in bin of {' or '.join(_ROOTS)}. It "
        "comes with the CUDA toolkit (cuda-sanitizer). Name its folder in PATH, or drop "
        "--sanitizer."
    )


def tool_command(
    binary: Path,
    tool: SanitizerTool,
    log: Path,
    command: Sequence[str],
    environment: dict[str, str],
) -> list[str]:
    """The command that runs another one under the tool, whose report goes to `log`.

    Options that its release does not know would end it, so that those are left out.
    """
    wanted = {
        # Each allocation of an engine's compiled code ends in bytes that nobody may access.
        "padding": "4096" if tool == "memcheck" else "",
        # torch asks for what a driver may not have; such a call is no error of a kernel.
        "report-api-errors": "no" if tool == "memcheck" else "",
        "print-limit": str(_PRINTED),
        # An engine is imported before it asks for the device.
        "launch-timeout": "0",
        "target-processes": "application-only",
        # Whose a kernel is shows in the folder of its file.
        "strip-paths": "no",
    }
    known = _known_options(binary, environment)
    options = [
        word
        for name, value in wanted.items()
        if value and name in known
        for word in (f"--{name}", value)
    ]
    return [str(binary), "--tool", tool, "--log-file", str(log), *options, *command]


def _known_options(binary: Path, environment: Mapping[str, str]) -> frozenset[str]:
    """Names of the options that its help tells of."""
    try:
        done = subprocess.run(
            [str(binary), "--help"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_HELP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()  # what is wrong with it shows when it is called
    return frozenset(re.findall(r"--([a-z][a-z-]+)", done.stdout.decode(errors="replace")))
