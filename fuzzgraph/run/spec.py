"""What a run is asked to do, as one record that is handed on whole, and the table of its options.

The command line, the pytest plugin and a fleet's driver make it; the campaign, the worker, the
execution and the event log take it as it is. A field with an `Option` beside it is an option of
the command line and of the plugin, part of the replay command and a row in docs/cli.md: adding one
takes this field and the place that reads it. Runs nothing and reads nothing.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from fuzzgraph.accesses import SanitizerTool
from fuzzgraph.errors import UsageError
from fuzzgraph.run.identity import checked_identity, identity_words
from fuzzgraph.run.option import Option, rows_of

Device = Literal["cpu", "cuda"]
Graphs = Literal["recorder", "device", "emulated"]
Isolation = Literal["", "on", "off"]
Profile = Literal["ci", "nightly", "device"]
Sanitizing = Literal["", SanitizerTool]

_DATABASES = (r"dir:.+", r"(redis|rediss|unix)://.+", r"github:[\w.-]+/[\w.-]+")
DATABASE_FORMS = "dir:FOLDER, redis://HOST:PORT[/DB], github:OWNER/REPO"


def checked_database(text: str, where: str = "database") -> str:
    """The text, if it has the form of a database's name; '' for none.

    Raises:
        UsageError: it has none of the forms.
    """
    if text and not any(re.fullmatch(form, text, re.ASCII) for form in _DATABASES):
        raise UsageError(f"{where}={text!r} is not a database URL. Use one of: {DATABASE_FORMS}.")
    return text


def graphs_of(setup: Setup) -> Graphs:
    """The graph engine that the device of a setup has by itself."""
    return "device" if setup.device == "cuda" else "recorder"


class Setup(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a case is run on."""

    target: Annotated[
        str,
        Option(
            "Engine under test: a name from 'fuzzgraph targets', or module:factory of your own.",
            metavar="TARGET",
            always=True,
            ini="fuzzgraph_target",
        ),
    ] = "builtin"
    release: Annotated[
        str,
        Option(
            "Release of the engine, e.g. 0.5.12 or sglang==0.5.12, for targets run in a worker.",
            metavar="VERSION",
            without="as installed",
        ),
    ] = ""
    source: Annotated[
        str,
        Option(
            "Checkout or unpacked wheel of the engine to take in the place of a release.",
            metavar="DIR",
            without="none",
            path=True,
            refused="it is looked for there. Give it by --source",
        ),
    ] = ""
    tree: Annotated[
        str,
        Option(
            "What --source has to hold, as findings name it; another tree is refused.",
            metavar="IDENTITY",
            without="whatever it holds",
            check=checked_identity,
            refused="a tree cannot name itself. Give it by --tree",
        ),
    ] = ""
    """Identity of the tree that was run (`source_tree`)."""
    fault: Annotated[
        str, Option("Plant this fault in the built-in engine.", metavar="NAME", without="none")
    ] = ""
    device: Annotated[Device, Option("Where the engine runs; cuda is HIP as well.")] = "cpu"
    graphs: Annotated[
        Graphs,
        Option(
            "Graph implementation: the recorder, graphs of the device, or an emulated device, for "
            "tests of FuzzGraph itself.",
            without="device graphs on cuda, the recorder on cpu",
            left_out=graphs_of,
        ),
    ] = "recorder"
    strict_nan: Annotated[
        bool,
        Option("Also run each step with NaN in all memory that its batch does not own."),
    ] = False
    """Finds masked loads that end in 0 * NaN; such findings have the symptom "nan_mismatch"."""
    overlap: Annotated[
        bool,
        Option(
            "Also run each step with the host a step ahead, as servers overlap them: copies from "
            "and to pinned memory, and work of side streams, run as late as CUDA allows."
        ),
    ] = False
    """Finds pinned buffers that are written again before the copy out of them need have run, or
    read before the copy into them need have."""
    second_opinion: Annotated[
        bool,
        Option(
            "Also compute the truth of each step by the Triton reference, which has to agree with "
            "the float64 one."
        ),
    ] = False
    isolation: Annotated[
        Isolation,
        Option(
            "Whether the engine runs in a process of its own, whose death is then a finding and "
            "does not end the run.",
            without="on for real engines, module:factory and cuda",
        ),
    ] = ""
    stock_kernels: Annotated[
        bool,
        Option(
            "Run Triton kernels on a CPU in Triton's own interpreter, slowly and unchecked, not "
            "over lanes."
        ),
    ] = False
    sanitizer: Annotated[
        Sanitizing,
        Option(
            "Also run cases under this tool of NVIDIA's compute-sanitizer, on a GPU, a minute or "
            "more each.",
            without="none",
        ),
    ] = ""
    """What it reports of a finding's case is told with the finding; what it reports where nothing
    else was found is a finding."""

    @property
    def engine(self) -> str:
        """Which engine it is in a few words: release, or tree; '' as it is installed."""
        if self.source:
            return f"tree at {identity_words(self.tree)}" if self.tree else "a tree of sources"
        return f"release {self.release}" if self.release else ""


DEFAULT_SETUP = Setup()
"""The healthy built-in engine on this machine's CPU."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When to stop searching; None means no limit."""

    seconds: Annotated[
        float | None,
        Option(
            "How long, e.g. 90s, 10m, 8h, or seconds.",
            flag="time",
            without="60s, if --examples is not given",
        ),
    ] = None
    examples: Annotated[
        int | None,
        Option("How many generated cases; 0 runs the corpus only.", without="no limit"),
    ] = None
    findings: Annotated[
        int | None,
        Option("Stop after this many findings.", least=1, without="no limit", verbs=("run",)),
    ] = None


class RunSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Everything that a run is asked to do, or one shard of it."""

    setup: Setup = DEFAULT_SETUP
    seed: Annotated[
        int, Option("Same seed, same cases.", without="random, printed", always=True)
    ] = 0
    budget: Budget = Budget()
    profile: Annotated[
        Profile,
        Option(
            "Search effort: nightly has longer histories, larger batches, more shrinking; device "
            "has shapes of servers, for a GPU."
        ),
    ] = "ci"
    corpus: Annotated[
        str,
        Option(
            "Folder of cases to run first.",
            metavar="DIR",
            without="those that come with FuzzGraph, and those of corpus/cases where it exists",
            pytest=False,
            path=True,
        ),
    ] = ""
    ledger: Annotated[
        str,
        Option(
            "File of tolerated and quarantined findings.",
            metavar="FILE",
            without="corpus/ledger.toml where it exists",
            path=True,
        ),
    ] = ""
    baseline: Annotated[
        str,
        Option(
            "File of findings known before, as 'fuzzgraph baseline' writes it.",
            metavar="FILE",
            without="none",
            path=True,
        ),
    ] = ""
    database: Annotated[
        str,
        Option(
            f"Share cases with other runs: {DATABASE_FORMS}.",
            metavar="URL",
            without="none",
            check=checked_database,
            refused="it is written to and reached over a network. Give it by --database",
        ),
    ] = ""
    only_new: Annotated[bool, Option("Exit with 1 only for findings not in --baseline.")] = False
    out: Annotated[
        str,
        Option(
            "New or empty folder of the run.",
            metavar="DIR",
            without="reports/runs/TIME-SEED",
            path=True,
        ),
    ] = ""
    """Its shards share it. '' until it is made, once nothing can be refused any more."""
    settings: str = ""
    """File of settings that had a part in it (`settings_file`); '' for none."""
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


SETUP_OPTIONS = rows_of(Setup)
OPTIONS = (*SETUP_OPTIONS, *rows_of(Budget), *rows_of(RunSpec))
"""Every option of a run, in the order in which help and docs show them."""
