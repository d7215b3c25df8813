"""Assembles the standalone script of a finding from a recording of its case.

The order of the text is that of reading: what was found, the memory as the engine allocated it, the
captured graph, the steps, the check, and last the source of the rules by which it measures. It
needs torch and nothing of FuzzGraph.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import torch

from fuzzgraph.case import Case
from fuzzgraph.execution.failures import SessionFailed
from fuzzgraph.finding import Finding
from fuzzgraph.graphs import RecordedGraph
from fuzzgraph.layout import plan
from fuzzgraph.memory import Region, poison_value
from fuzzgraph.ports import Target, unwrapped
from fuzzgraph.repro.arena import ScriptMemory, declared_names, pinned_regions
from fuzzgraph.repro.checks import ScriptCheck, check_for
from fuzzgraph.repro.embedding import Embedded, embeddable_in
from fuzzgraph.repro.kernels import Kernels
from fuzzgraph.repro.literals import contents, dtype_text, scalar_text
from fuzzgraph.repro.naming import region_names
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.printing import Function, Shared, graph_is_empty, graph_name, statements
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.wording import CANNOT_RUN, device_check, docstring, opening
from fuzzgraph.repro.world_functions import WorldFunctions
from fuzzgraph.run.spec import Device
from fuzzgraph.text.finding_text import headline


def standalone_script(case: Case, finding: Finding, target: Target, device: Device = "cpu") -> str:
    """The script's text.

    Args:
        device: where the script runs. For a GPU the operations are recorded here on a CPU all the
            same, and the script captures them there.

    Raises:
        NotStandalone: operations alone cannot show this finding.
    """
    batches = plan(case)
    if finding.step >= len(batches):
        raise NotStandalone(f"the case has no step {finding.step}")
    check = check_for(finding, case.config)
    with _closing(_opened(case, target, check)) as recording, torch.no_grad():
        for batch in batches[: 0 if check.opening else finding.step]:
            if (failure := recording.add(batch).failure) is not None:
                raise NotStandalone(f"an earlier step raised {failure.error}")
        check.record(recording, batches[finding.step])
        text = _Script(case, finding, target, recording, check, on_device=device != "cpu").text()
    if len(text) > _LONGEST:
        raise NotStandalone(f"the script would be {len(text) >> 20} MiB long")
    return text


def _opened(case: Case, target: Target, check: ScriptCheck) -> Recording:
    try:
        return Recording.of(case.config, target, opening=check.opening)
    except SessionFailed as failed:
        raise NotStandalone(f"the engine raised {failed.failure.error} as it opened") from None


@contextmanager
def _closing(recording: Recording) -> Iterator[Recording]:
    """Give the session's memory back; what the engine raises at its end is no script's business."""
    try:
        yield recording
    finally:
        with suppress(SessionFailed):
            recording.opened.close()


_LONGEST = 4 << 20
"""Characters of a script; one of 20 steps of real sglang has 60,000."""
_RUNS_ON_A_DEVICE = (
    "It runs on a GPU: memory lies there, and each graph is captured by torch.cuda.CUDAGraph at its"
    " first call and replayed then.",
    "",
)
_RULES = "# ---- the rule that is broken, as FuzzGraph's oracles apply it"


def _engine_version(target: Target) -> str:
    """The engine's package with its version, as it is imported here; '' for FuzzGraph's own."""
    package = str(getattr(unwrapped(target), "package", ""))
    version = getattr(sys.modules.get(package), "__version__", "")
    return f"{package} {version}, " if version else ""


def _froms_last(imports: Iterable[str]) -> list[str]:
    return sorted(imports, key=lambda line: (line.startswith("from"), line))


class _Script:
    def __init__(
        self,
        case: Case,
        finding: Finding,
        target: Target,
        recording: Recording,
        check: ScriptCheck,
        *,
        on_device: bool,
    ) -> None:
        self._on_device = on_device
        self.case, self.finding, self.target = case, finding, target
        self.recording, self.check = recording, check
        self.last = finding.step
        self.checked = check.regions(recording)
        self._pinned = pinned_regions(recording, self.checked)
        self._name(recording.regions())

    def _name(self, regions: Iterable[Region]) -> None:
        """Begin afresh with names for these regions."""
        recording = self.recording
        names = region_names(regions, declared_names(recording))
        self.memory = ScriptMemory(recording, names, self._pinned)
        self.kernels, self.shared = Kernels(), Shared()

    def text(self) -> str:
        """The whole module."""
        self._functions()
        self._name_what_is_reached()
        self._name(list(self.memory.used.values()))  # short names, for few are left to tell apart
        self._functions()  # finds what leaves its function
        functions = self._functions()
        self._name_what_is_reached()
        worlds = WorldFunctions(self.recording, self.check, self.memory)
        laid = worlds.lines()
        main = self._main(worlds.idle)
        memory = self._memory()
        steps = [*laid, *functions]
        text = "\n".join([*memory, *steps])
        rounding = self._rounding(text)
        helpers = Embedded(embeddable_in("\n".join([text, *rounding])))
        rules = Embedded(embeddable_in("\n".join(main)), beside=helpers)
        parts = [
            self._docstring(helpers.imports | rules.imports),
            self._head(helpers.imports | rules.imports),
            helpers.text(),
            "\n".join(memory),
            "\n".join(self.kernels.lines()).strip("\n"),
            "\n".join(rounding),
            "\n".join(steps).strip("\n"),
            "\n".join(main).strip("\n"),
            f"{_RULES}\n\n\n{rules.text()}",
        ]
        text = "\n\n\n".join(part for part in parts if part)
        return text + '\n\n\nif __name__ == "__main__":\n    sys.exit(main())\n'

    def _rounding(self, text: str) -> list[str]:
        """Interpreted kernels that have floats of 8 bits round them as devices do."""
        if self._on_device or not self.kernels or "float8" not in text:
            return []
        return [
            "# Triton's own interpreter halves some numbers where it rounds to FP8.",
            "round_small_floats()",
        ]

    def _name_what_is_reached(self) -> None:
        """Regions that the check names, and those reached through views of the whole arena."""
        for region in self.checked:
            self.memory.name(region)
        for region in self.recording.regions():
            reached = id(region) in self.recording.reached
            if reached and (region.segment == "engine" or id(region) in self._pinned):
                self.memory.name(region)

    # ---- head

    def _docstring(self, imports: set[str]) -> str:
        finding, case = self.finding, self.case
        engine = _engine_version(self.target)
        needed = ["torch", *(["triton"] if self.kernels else [])]
        needed += ["a CUDA or HIP device"] if self._on_device else []
        needed += ["numpy"] if any("numpy" in line for line in imports) else []
        lines = [
            *opening(case, finding),
            "Below are the engine's own operations, recorded in this case, each with the source"
            " line that issued it. Nothing else of the engine is needed: buffers lie as the engine"
            " allocated them, and the check measures again.",
            "",
            *(_RUNS_ON_A_DEVICE if self._on_device else []),
            f"Run it: python THIS_FILE; exit code 1 and the finding, or 0 if it is not reproduced"
            f"{f', or {CANNOT_RUN} without a GPU' if self._on_device else ''}.",
            f"Requires {', '.join(needed)}. Recorded on a CPU with"
            f" {engine}torch {torch.__version__}, Python {platform.python_version()}.",
        ]
        return docstring(lines)

    def _head(self, imports: set[str]) -> str:
        """Imports and constants."""
        interpreted = self.kernels and not self._on_device
        lines = sorted({*imports, "import sys", *(["import os"] if interpreted else [])})
        lines.remove("import torch")
        lines = ["from __future__ import annotations", "", *_froms_last(lines)]
        if self.kernels and not self._on_device:
            lines += ["", 'os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported']
        lines += ["", "import torch"]
        if self.kernels:
            lines += ["import triton", "import triton.language as tl"]
        if self._on_device:
            lines += ["", *device_check(), 'torch.set_default_device("cuda")']
        lines += ["", f"HEADLINE = {headline(self.finding)!r}"]
        lines += [f"BUFFER = {self.finding.buffer!r}", "", "torch.set_num_threads(1)"]
        return "\n".join(lines)

    # ---- memory

    def _memory(self) -> list[str]:
        arena = self.recording.memory.arena
        used = [r for r in self.recording.regions() if id(r) in self.memory.used]
        dtypes = {region.dtype for region in used}
        home = self.recording.memory.world
        poisons = [f"    {_poison_entry(dtype, home)}," for dtype in sorted(dtypes, key=str)]
        floats = "finite and far from all that is computed" if home == 0 else "NaN"
        lines = [
            "# ---- memory, as the engine allocated it: offset in bytes, shape, dtype, red",
            "# ---- zones in bytes; then what it held just after capture",
            "",
            f"MEMORY = torch.empty({arena.capacity}, dtype=torch.uint8)"
            f"{'' if self._on_device else '  # untouched pages cost nothing'}",
            f"SPANS = {self.recording.spans}  # where the engine allocated",
            "ZONES = {}",
            "# What memory holds that nobody has written. An index is a page, row and slot that",
            f"# exist and belong to nobody; a float is {floats}.",
            "# The second value is that of another world: what depends on it was read by mistake.",
            "POISON = {",
            *poisons,
            "}",
            "world = 0",
            *(["UNWRITTEN = []"] if self._on_device else []),
            "",
        ]
        for region in used:
            lines += self._declaration(region)
        if self.memory.wide:
            lines += [
                "",
                "# The engine addresses memory as a kernel does, by base and offset without",
                "# bounds: numbers added to an index are places of buffers in all of MEMORY.",
            ]
            lines += [f"{name} = {code}" for name, code in self.memory.wide.values()]
        if any("captured" in line for line in self._main_lines()):
            lines += ["", "captured = save()  # just after capture"]
        return lines

    def _declaration(self, region: Region) -> list[str]:
        name = self.memory.names[id(region)]
        content = self.recording.payload(region, self.recording.captured)
        fill, more = contents(name, content) if region.segment == "engine" else ("0", [])
        zones = f"({region.zone_before}, {region.zone_after})"
        parts = [str(region.offset), str(region.shape), dtype_text(region.dtype), zones]
        if fill not in ("0", "0.0", "False"):
            parts.append(f"fill={fill}")
        if not _is_contiguous(region):
            parts.append(f"stride={region.stride}")
        code = f"{name} = region({', '.join(parts)})"
        comment = region.allocated_at
        if region in self.checked and region.name != name:
            comment = f"{comment}: {region.name}"
        if len(code) + len(comment) < 96:
            return [f"{code}  # {comment}", *more]
        return [f"# {comment}", code, *more]

    # ---- functions

    def _functions(self) -> list[str]:
        lines = ["", "", "# ---- the captured graphs, and the steps"]
        for graph in self.recording.graphs.values():
            if graph_is_empty(graph):
                continue
            name = graph_name(graph.key)
            doc = "The captured graph: what every replay runs, whatever the batch."
            function = self._function(name, doc)
            lines += ["", "", *function.lines(graph.trace, is_graph=True)]
        for run in self.recording.runs:
            lines += ["", "", *self._run(run)]
        return lines

    def _function(self, name: str, doc: str) -> Function:
        return Function(
            name, doc, self.memory, self.shared, self.kernels, on_device=self._on_device
        )

    def _run(self, run: Run) -> list[str]:
        checked = run is self.check.run or run in self.check.others
        results = self.check.results(run) if checked else None
        function = self._function(self._run_name(run), self._run_doc(run))
        events = [*run.events, *(run.looks if results is not None else ())]
        last = run.failure.op if run.failure is not None and not _in_graph(run) else None
        # A graph of a device gives each replay's results in the same memory.
        copied = self._on_device and not self.check.by_address
        return function.lines(events, returns=results, copied=copied, last=last)

    def _run_name(self, run: Run) -> str:
        names = {"eager": "eager", "twin": "without_past", "capture": "at_capture"}
        return names.get(run.kind, f"step_{run.batch.step}")

    def _run_doc(self, run: Run) -> str:
        if run.kind == "eager":
            return "The same forward without a graph, unpadded."
        if run.kind == "capture":
            return "What the engine wrote into the buffer until the graph was captured."
        if run.kind == "twin":
            return "The last step on a session without a past."
        if any(isinstance(event, RecordedGraph) for event in run.events):
            return "The host's updates before the replay, then the replay."
        if run.batch.via == "graph":
            return "The host's updates before the replay, up to what raises."
        return "The step without a graph."

    # ---- main

    def _main_lines(self) -> list[str]:
        return self.check.lines(f"step_{self.last}", self.memory.names)

    def _main(self, idle: set[str]) -> list[str]:
        body = []
        for run in self.recording.runs:
            if run.kind == "step" and run.batch.step < self.last:
                body += [f"world_{run.batch.step}()", f"step_{run.batch.step}()"]
        if not self.check.opening:
            body.append(f"world_{self.last}()")
        body += self._main_lines()
        body = [line for line in body if line.removesuffix("()") not in idle]
        story = f'    """{self.check.story}"""'
        head = ["# ---- the check", "", "", "def main():", story]
        return ["", "", *head, *statements(body)]


def _poison_entry(dtype: torch.dtype, home: int) -> str:
    """What unwritten memory holds in the session's home world and in world B."""
    values = ", ".join(scalar_text(poison_value(dtype, which)) for which in (home, 1))
    return f"{dtype_text(dtype)}: ({values})"


def _in_graph(run: Run) -> bool:
    """Whether the operation that raised is one of a graph: printed there, not in the step."""
    return bool(run.events) and isinstance(run.events[-1], RecordedGraph)


def _is_contiguous(region: Region) -> bool:
    return region.stride == torch.empty(region.shape, device="meta").stride()
