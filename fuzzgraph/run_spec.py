"""What a run is asked to do, as one record that is handed on whole.

The command line, the pytest plugin and a fleet's driver make it; the campaign, the worker, the
execution and the event log take it as it is. Runs nothing and reads nothing.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Literal

import msgspec

from fuzzgraph.errors import UsageError

__all__ = [
    "DEFAULT_SETUP",
    "Budget",
    "Graphs",
    "Isolation",
    "Profile",
    "RunSpec",
    "Setup",
    "parse_time",
]

Graphs = Literal["recorder", "device"]
Isolation = Literal["", "on", "off"]
Profile = Literal["ci", "nightly"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_time(text: str, where: str = "time") -> float:
    """Seconds of a duration such as '90s', '10m', '8h' or plain seconds.

    >>> parse_time("10m")
    600.0

    Raises:
        UsageError: not a duration, zero, or more seconds than a float can hold.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip(), re.ASCII)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"{where}={text!r} is not a valid duration. Write a number and a unit, e.g. 60s, 10m "
            "or 8h."
        )
    return seconds


class Setup(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a case is run on."""

    target: str = "builtin"
    release: str = ""
    """Release of the engine, e.g. '0.5.12'; '' for the installed one."""
    fault: str = ""
    """Name of the planted fault; '' for none."""
    device: str = "cpu"
    graphs: Graphs = "recorder"
    strict_nan: bool = False
    """Whether each step also runs with NaN in all memory that its batch does not own: for masked
    loads that end in 0 * NaN. Such findings have the symptom "nan_mismatch"."""
    second_opinion: bool = False
    """Whether the Triton reference computes the truth of each step as well."""
    isolation: Isolation = ""
    """Whether the engine runs in a process of its own; '' for what target and device need."""
    stock_kernels: bool = False
    """Whether Triton kernels on a CPU run in Triton's own interpreter, slowly and unchecked."""


DEFAULT_SETUP = Setup()
"""The healthy built-in engine on this machine's CPU."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When to stop searching; None means no limit."""

    seconds: float | None = None
    examples: int | None = None
    """Generated cases; those of the corpus come on top."""
    findings: int | None = None


class RunSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Everything that a run is asked to do, or one shard of it."""

    setup: Setup = DEFAULT_SETUP
    seed: int = 0
    budget: Budget = Budget()
    profile: Profile = "ci"
    corpus: str = ""
    """Folder of the cases to run first, to find it again; '' for none."""
    ledger: str = ""
    baseline: str = ""
    database: str = ""
    """Where cases are shared with other runs, e.g. 'dir:FOLDER'; '' for nowhere."""
    only_new: bool = False
    """Whether findings of the baseline leave the exit code alone."""
    out: str = "reports/runs/run"
    """Folder of the run; its shards share it."""
    shard: int = 0
    shards: int = 1
    finish_only: bool = False
    """Whether to do what an earlier run left undone, and nothing else."""
    confirm_times: int = 3
    """Fresh sessions in which a finding is confirmed."""
    shrink_seconds: float = 20.0
    """What one finding may take to shrink."""
    export_seconds: float = 240.0
    """What executing the repro scripts may take in all; those after that are written only."""
    progress_seconds: float = 1.0
    """Between two events of progress."""

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(self.out)

    def with_profile_times(self) -> RunSpec:
        """The same with the time that a night has for shrinking and for executing scripts."""
        if self.profile != "nightly":
            return self
        return msgspec.structs.replace(self, shrink_seconds=60.0, export_seconds=600.0)

    def of_shard(self, shard: int, shards: int) -> RunSpec:
        """What one shard of this run is asked: its share of the examples, and all of the time."""
        examples = self.budget.examples
        if examples is not None:
            examples = examples // shards + (shard < examples % shards)
        budget = msgspec.structs.replace(self.budget, examples=examples)
        return msgspec.structs.replace(self, budget=budget, shard=shard, shards=shards)

    def block_seed(self, block: int) -> int:
        """Seed of a block of examples: another one for every seed, shard and block.

        A hash, since sums of three small numbers would often be equal.
        """
        text = f"{self.seed}/{self.shard}/{block}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
