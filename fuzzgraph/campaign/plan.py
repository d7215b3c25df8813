"""What a campaign is asked to do: its budget, seed, shard and folders. Runs nothing."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzzgraph.errors import UsageError
from fuzzgraph.events import Setup

__all__ = ["Budget", "Plan", "parse_time"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_time(text: str, where: str = "time") -> float:
    """Seconds of a duration such as '90s', '10m', '8h' or plain seconds.

    >>> parse_time("10m")
    600.0

    Raises:
        UsageError: not a duration, zero, or no number of seconds a clock can count.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip(), re.ASCII)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"{where}={text!r} is no duration. Write a number and a unit, e.g. 60s, 10m or 8h."
        )
    return seconds


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop looking; None means without limit."""

    seconds: float | None = None
    examples: int | None = None
    """Generated cases; those of the corpus come on top."""
    findings: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a campaign is told before it starts."""

    setup: Setup = field(default_factory=Setup)
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    out: Path = Path("reports/runs/run")
    """Folder of the run; shards of one run share it."""
    profile: str = "ci"
    corpus: str = ""
    """Folder of the cases to run first, to find it again; '' for none."""
    ledger: str = ""
    baseline: str = ""
    database: str = ""
    """Where cases are shared with other runs, e.g. 'dir:FOLDER'; '' for nowhere."""
    only_new: bool = False
    """Whether findings of the baseline leave the exit code alone."""
    finish_only: bool = False
    """Whether to do what an earlier run left undone, and nothing else."""
    shard: int = 0
    shards: int = 1
    confirm_times: int = 3
    shrink_seconds: float = 20.0
    """What one finding may take to shrink."""
    export_seconds: float = 240.0
    """What executing the repros may take in all; those after that are written only."""
    progress_seconds: float = 1.0

    def patient(self) -> Plan:
        """The same with the time that a night has for shrinking and for executing repros."""
        if self.profile != "nightly":
            return self
        return replace(self, shrink_seconds=60.0, export_seconds=600.0)

    def block_seed(self, block: int) -> int:
        """Seed of a block of examples: another one for every seed, shard and block."""
        text = f"{self.seed}/{self.shard}/{block}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
