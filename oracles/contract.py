"""Clause "metadata and capture tell the truth": what can be judged from one step alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import Field, Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.oracles.comparison import first_difference
from fuzzgraph.oracles.entries import (
    Breach,
    Values,
    branches,
    count_breaches,
    dtype_breaches,
    indptr_breaches,
    live_breaches,
    padding_breaches,
    sizes,
    step_breaches,
    sum_breaches,
)
from fuzzgraph.oracles.page_maps import indices_breaches, page_table_breaches
from fuzzgraph.reference import capture_truth

__all__ = ["Contract"]


class Contract:
    """Shapes, ranges, ownership, reserved rows, addresses, capture values and metadata types."""

    name = "contract"
    clause: Clause = "metadata"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for name, message in self._breaches(step):
            yield claim(
                step, self.name, self.clause, buffer=name, symptom="broken_contract",
                message=message,
            )  # fmt: skip
        if (seen := step.runs.get("replay")) is not None:
            yield from self._at_capture(step, seen)

    def _at_capture(self, step: StepRecord, seen: Observation) -> Iterable[Finding]:
        """Values that the graph saw at its capture, by the rule that the replay follows."""
        fields = {field.name: field for field in step.fields}
        for name, got in step.at_capture.items():
            want = capture_truth(fields[name], seen, step.config) if name in fields else None
            if want is None:
                continue
            worst = first_difference(got.reshape(-1), torch.full_like(got, want).reshape(-1))
            if worst is not None:
                message = f"{name}{worst} at capture, by the rule that the replay follows"
                yield claim(
                    step, self.name, self.clause, buffer=name, symptom="broken_contract",
                    message=message, stage="capture", want=want,
                )  # fmt: skip

    def _breaches(self, step: StepRecord) -> Iterator[Breach]:
        seen = step.runs.get("replay")
        if seen is None:
            return
        values = {
            name: _host(tensor)
            for name, tensor in seen.metadata.items()
            if not tensor.is_floating_point()
        }
        for field in step.fields:
            if field.name in seen.metadata:
                yield from dtype_breaches(field, seen.metadata[field.name])
            if field.name in values:
                yield from _field_breaches(field, values, step, seen)
        yield from _address_breaches(step)
        yield from _engagement_breaches(step)
        for name, actual in seen.types.items():
            needed = seen.types.get(f"{name}.needed", actual)
            if needed != actual:
                yield name, f"{name} is {actual}, the forward needs {needed}: it was not upgraded"


def _host(tensor: torch.Tensor) -> Values:
    return tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy()


def _field_breaches(
    field: Field, values: dict[str, Values], step: StepRecord, seen: Observation
) -> Iterator[Breach]:
    value = values[field.name]
    if field.axis == "indptr":
        yield from indptr_breaches(field, value, seen)
        yield from step_breaches(field, value, step)
    elif field.axis == "indices":
        offsets = values.get(field.name.replace("_indices", "_indptr"))
        if offsets is not None:
            yield from indices_breaches(field, value, offsets, step, seen)
    elif field.axis == "page_table":
        yield from page_table_breaches(field, value, step)
    elif field.name == "num_token_non_padded":
        yield from count_breaches(field, value, step, seen)
    elif field.name == "seq_lens_sum" and "seq_lens" in values:
        yield from sum_breaches(field, value, values["seq_lens"], seen)
    elif field.axis in ("requests", "tokens"):
        live, padded = sizes(field, seen)
        if len(value) not in (padded, branches(field, step, seen)):
            yield field.name, f"{field.name} has {len(value)} entries, the graph has {padded}"
        yield from live_breaches(field, value, step)
        yield from padding_breaches(field, value, live)
    elif field.axis == "scalar":
        yield from live_breaches(field, value, step)
    if field.selects == "length" and value.size and (least := int(value.min())) < 0:
        yield field.name, f"{field.name} holds the negative length {least}"


def _engagement_breaches(step: StepRecord) -> Iterator[Breach]:
    if step.engagements == ():
        yield "graph", "no graph was replayed although the batch fits the captured sizes"
    for engaged in step.engagements or ():
        if engaged.python_calls:
            yield (
                "graph",
                f"a replay ran the captured Python again ({engaged.python_calls} calls): it was no"
                " replay",
            )
        for output in engaged.unwritten:
            yield "graph", f"the replay left {output} as it was poisoned before"


def _address_breaches(step: StepRecord) -> Iterator[Breach]:
    for change in step.address_changes:
        yield (
            change.name,
            f"{change.name} lies at another address than the graph captured: the replay reads"
            " the old buffer",
        )
    for name, captured, now in step.dtype_changes:
        yield name, f"{name} is {now} now; the graph captured and reads {captured}"
