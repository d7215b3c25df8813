"""Checks of metadata: a field against its claims, a value at capture, a buffer that moved."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.graphs import RecordedOp
from fuzzgraph.memory.operator_facts import facts_of
from fuzzgraph.oracles.contract import Claim, claims_of
from fuzzgraph.repro.checks.base import ScriptCheck
from fuzzgraph.repro.literals import tensor_text, value_text
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.origin import leading_to
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.world import Batch


class FieldCheck(ScriptCheck):
    """A declared field against what it must hold for this batch."""

    story = "The metadata that the replay used says what the batch says."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        step, seen = self.step_record(recording, batch), self.seen
        fields = {each.name: each for each in step.fields}
        name = self.finding.buffer
        if name not in fields or name not in seen.metadata:
            raise NotStandalone(f"{name or 'what is wrong'!r} is no single field of the metadata")
        self._claims: list[Claim] = list(claims_of(fields[name], step, seen))
        if not self._claims:
            raise NotStandalone(f"nothing is known that {name!r} must hold")
        if _is_written_out(self.run, seen.metadata[name]):
            raise NotStandalone(f"the engine's Python computes {name}, and no operation does")
        read = [other for each in self._claims for other in each.fields]
        self._tensors = {other: seen.metadata[other] for other in [name, *read]}

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._tensors

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        if len(self._tensors) == 1:
            got = {self.finding.buffer: "got"}
        else:
            got = {name: f"got[{name!r}]" for name in self._tensors}
        found = [line for each in self._claims for line in _call(each, got)]
        return [f"got = {step}()", "return report([", *found, "])"]


def _is_written_out(run: Run | None, tensor: torch.Tensor) -> bool:
    """Whether a tensor was made of Python numbers: a script could only repeat them."""
    lifted = {
        output.data_ptr()
        for event in (run.looks if run is not None else ())
        if isinstance(event, RecordedOp) and event.kind == "operation"
        if facts_of(event.func).is_lift
        for output in event.outputs
    }
    return tensor.data_ptr() in lifted


def _call(each: Claim, got: dict[str, str]) -> list[str]:
    """A claim as lines of a list: over several lines where the batch's facts are long."""
    arguments = ["BUFFER", *(got[name] for name in each.fields)]
    arguments += [f"{name}={_fact_text(value)}" for name, value in each.facts.items()]
    head = f"    *{each.rule.__name__}("
    line = f"{head}{', '.join(arguments)}),"
    if len(line) < 96:
        return [line]
    return [head, *(f"        {argument}," for argument in arguments), "    ),"]


def _fact_text(value: Any) -> str:
    """A plain value; long lists over several lines."""
    text = value_text(value)
    if len(text) < 80 or not isinstance(value, list):
        return text
    items = [f"            {value_text(item)}," for item in value]
    if not isinstance(value[0], list):
        texts = [value_text(item) for item in value]
        items = [
            f"            {', '.join(texts[at : at + 16])}," for at in range(0, len(texts), 16)
        ]
    return "\n".join(["[", *items, "        ]"])


class MovedBufferCheck(ScriptCheck):
    """The buffer that the engine writes is the one that the graph reads."""

    by_address = True
    story = "The engine writes the buffer that the graph reads."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        now, captured = recording.opened.session.captured_addresses()[self.finding.buffer]
        offset = recording.offset(captured)
        if offset is None:
            raise NotStandalone("the buffer that the graph reads lies in no guarded memory")
        frozen = recording.memory.arena.view(offset, now.shape, now.stride(), now.dtype)
        self._tensors = {"the graph reads": frozen, "the engine writes": now}

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._tensors

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            f"seen = {step}()",
            'reads, writes = seen["the graph reads"], seen["the engine writes"]',
            "if reads.data_ptr() == writes.data_ptr():",
            "    return report([])",
            "return report([",
            "    moved_text(BUFFER),",
            '    f"the graph reads    {reads.flatten()[:16].tolist()}",',
            '    f"the engine writes  {writes.flatten()[:16].tolist()}",',
            "])",
        ]


class CaptureCheck(ScriptCheck):
    """A value that the graph saw at capture against the rule that the replay follows.

    The opening of the engine, its warm-up and its capture are recorded; of all that only what the
    value depends on is printed.
    """

    story = "At capture the graph sees what the replay's own rule says for the capture's batch."
    opening = True

    def record(self, recording: Recording, batch: Batch) -> None:
        values = recording.opened.session.capture_values(batch)
        name = self.finding.buffer
        if name not in values:
            raise NotStandalone(f"{name!r} was not recorded at capture")
        self._value = values[name]
        truth = self.finding.detail.get("want")
        if not isinstance(truth, int):
            raise NotStandalone("the finding does not say what the capture must see")
        self._truth = truth
        events = leading_to(recording.opening, self._value)
        self.run = Run(batch, "capture", events=list(events))
        recording.runs = [self.run]

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return {self.finding.buffer: self._value}

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            "got = at_capture()",
            f"want = {tensor_text(torch.full_like(self._value, self._truth))}",
            "worst = first_difference(got.reshape(-1), want.reshape(-1))",
            *self.told("at capture, by the rule that the replay follows"),
        ]
