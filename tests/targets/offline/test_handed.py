"""What a runner hands a backend is taken down as it is, whatever the methods are called."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuzzgraph.handover import Handover
from fuzzgraph.targets.offline.handed import BackendWatch


@dataclass
class Metadata:
    lens: torch.Tensor
    name: str = "of a graph"
    counts: list[int] | None = None


class Graph:
    """Stands for a captured graph."""

    def __init__(self) -> None:
        self.before_replay: Any = lambda: None


class Backend:
    def __init__(self) -> None:
        self.forward_metadata: Metadata | None = None
        self.buffer = torch.zeros(4, dtype=torch.int64)

    def plan_ahead(self, batch: Any, rows: int) -> None:
        """A name that no list of ours has."""
        self.fill(batch.seq_lens, rows)

    def fill(self, lens: torch.Tensor, rows: int) -> None:
        self.buffer[: len(lens)] = lens
        self.forward_metadata = Metadata(self.buffer[:rows])

    def size(self) -> int:
        return 4


class Watched:
    """A backend, its watch, and whether it is capturing."""

    def __init__(self, backend: Any = None, **how: bool) -> None:
        self.backend: Any = backend or Backend()
        self.capturing = False
        self.graph = Graph()
        self.on_host: list[torch.Tensor] = []
        graphs: Any = SimpleNamespace(graphs=[self.graph], side_of=self.side_of)
        self.watch = BackendWatch(self.backend, graphs, lambda: self.capturing, **how)

    def side_of(self, tensor: torch.Tensor) -> str:
        addresses = [each.data_ptr() for each in self.on_host]
        return "host" if tensor.data_ptr() in addresses else ""

    def capture(self) -> torch.Tensor:
        """Capture graph 4; returns the lengths of its batch."""
        self.capturing = True
        batch = SimpleNamespace(seq_lens=torch.ones(4, dtype=torch.int64), batch_size=4)
        self.backend.plan_ahead(batch, 4)
        self.watch.captured(4)
        self.capturing = False
        lens: torch.Tensor = batch.seq_lens
        return lens

    def step(self, *lens: int) -> tuple[Handover, ...]:
        batch = SimpleNamespace(seq_lens=torch.tensor(lens), batch_size=len(lens))
        self.backend.plan_ahead(batch, 4)
        self.graph.before_replay()
        return self.watch.take(4)


def values(handover: Handover, path: str) -> list[int]:
    found = handover.tensors[path].values
    assert found is not None
    return [int(value) for value in found]


def test_the_outermost_call_is_taken_down_with_the_records_in_its_arguments() -> None:
    watched = Watched()
    call, _ = watched.step(5, 6, 7)
    assert (call.to, call.scalars) == ("Backend.plan_ahead", {"batch.batch_size": 3, "rows": 4})
    assert values(call, "batch.seq_lens") == [5, 6, 7]


def test_a_graph_shows_the_memory_that_it_was_captured_with() -> None:
    watched = Watched()
    watched.capture()
    *_, held = watched.step(5, 6, 7)
    assert values(held, "forward_metadata.lens") == [5, 6, 7, 1]
    assert held.bound["forward_metadata.lens"] == watched.backend.buffer.data_ptr()
    assert held.rebound == held.bound | {}


def test_inputs_of_the_captured_batch_count_as_they_were_before_the_replay() -> None:
    watched = Watched()
    inputs = watched.capture()
    inputs.copy_(torch.tensor([5, 6, 7, 1]))
    watched.backend.plan_ahead(SimpleNamespace(seq_lens=inputs), 4)
    watched.graph.before_replay()
    inputs.zero_()  # as a draft writes its next tokens over its input
    *_, held = watched.watch.take(4)
    assert values(held, "batch.seq_lens") == [5, 6, 7, 1]


def test_a_buffer_made_anew_is_bound_to_another_address() -> None:
    class Reallocates(Backend):
        def fill(self, lens: torch.Tensor, rows: int) -> None:
            self.buffer = torch.zeros(4, dtype=torch.int64)
            super().fill(lens, rows)

    watched = Watched(Reallocates())
    watched.capture()
    *_, held = watched.step(5, 6, 7)
    path = "forward_metadata.lens"
    assert held.rebound[path] != held.bound[path]
    assert values(held, path) == [1, 1, 1, 1]


def test_the_empty_view_that_an_idle_batch_gets_lies_nowhere() -> None:
    class ShowsLiveRows(Backend):
        def fill(self, lens: torch.Tensor, rows: int) -> None:
            super().fill(lens, rows)
            self.forward_metadata = Metadata(self.buffer[: len(lens)])

    watched = Watched(ShowsLiveRows())
    watched.capture()
    *_, held = watched.step()
    assert held.rebound == {}
    *_, held = watched.step(5, 6)
    assert held.rebound == held.bound


def test_a_preparation_that_loses_its_metadata_is_seen() -> None:
    class Forgets(Backend):
        def fill(self, lens: torch.Tensor, rows: int) -> None:
            had = self.forward_metadata is not None
            super().fill(lens, rows)
            if had:
                self.forward_metadata = None

    watched = Watched(Forgets())
    watched.capture()
    *_, held = watched.step(5, 6, 7)
    assert held.dropped == ("forward_metadata",)


def test_a_record_without_a_tensor_is_not_missed() -> None:
    class ForgetsNothing(Backend):
        def fill(self, lens: torch.Tensor, rows: int) -> None:
            had = self.forward_metadata is not None
            super().fill(lens, rows)
            # As sglang 0.5.9 has it for the second part of a verify that has none.
            self.second_part = None if had else Metadata(None)  # type: ignore[arg-type]

    watched = Watched(ForgetsNothing())
    watched.capture()
    *_, held = watched.step(5, 6, 7)
    assert held.dropped == ()


class Counting(Backend):
    """Keeps the host's lengths as well."""

    def fill(self, lens: torch.Tensor, rows: int) -> None:
        super().fill(lens, rows)
        assert self.forward_metadata is not None
        self.forward_metadata.counts = lens.tolist()


def test_lists_of_numbers_are_shown_as_the_host_has_them_now() -> None:
    watched = Watched(Counting())
    watched.capture()
    *_, held = watched.step(5, 6)
    assert values(held, "forward_metadata.counts") == [5, 6]
    assert held.tensors["forward_metadata.counts"].side == "host"


def test_lists_of_a_capture_are_shown_where_the_record_has_none_any_more() -> None:
    watched = Watched(Counting())
    watched.capture()
    watched.backend.plan_ahead(SimpleNamespace(seq_lens=torch.ones(2), batch_size=2), 4)
    assert watched.backend.forward_metadata is not None
    watched.backend.forward_metadata.counts = None
    *_, held = watched.watch.take(4)
    assert values(held, "forward_metadata.counts") == [1, 1, 1, 1]


def test_a_replay_that_prepares_nothing_shows_the_lists_of_its_own_capture() -> None:
    watched = Watched(Counting())
    watched.capture()
    watched.capturing = True
    smaller = SimpleNamespace(seq_lens=torch.ones(2, dtype=torch.int64), batch_size=2)
    watched.backend.plan_ahead(smaller, 2)
    watched.watch.captured(2)
    watched.capturing = False
    *_, held = watched.watch.take(4)
    assert values(held, "forward_metadata.counts") == [1, 1, 1, 1]


def test_an_eager_run_shows_only_what_it_prepared_itself() -> None:
    watched = Watched()
    watched.capture()
    (held,) = watched.watch.take(None)
    assert held.tensors == {}


def test_values_are_not_read_while_a_graph_is_captured() -> None:
    watched = Watched()
    watched.capture()
    (call,) = watched.watch.at_capture(4)
    assert call.tensors["batch.seq_lens"].shape == (4,)
    assert call.tensors["batch.seq_lens"].values is None


def test_an_error_of_the_engine_leaves_the_watch_usable() -> None:
    class Raises(Backend):
        def plan_ahead(self, batch: Any, rows: int) -> None:
            raise RuntimeError("no room")

    watched = Watched(Raises())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no room"):
            watched.backend.plan_ahead(SimpleNamespace(seq_lens=torch.ones(1)), 1)
    assert len(watched.watch.take(None)) == 3


class Calls(Backend):
    def plain(self, lens: torch.Tensor, rows: int, width: int = 1) -> None:
        """Each argument can be given by place and by name."""

    def mixed(self, lens: torch.Tensor, *rest: int, rows: int = 0, **more: int) -> None:
        """Some cannot."""


LENS = torch.ones(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "scalars"),
    [
        ("plain", (LENS, 3), {}, {"rows": 3}),
        ("plain", (LENS,), {"width": 5, "rows": 3}, {"rows": 3, "width": 5}),
        ("plain", (), {"rows": 3, "lens": LENS}, {"rows": 3}),
        ("plain", (LENS,), {}, {}),  # a call that Python refuses is taken down by place
        ("plain", (LENS, 3, 4, 5), {}, {"[1]": 3, "[2]": 4, "[3]": 5}),
        ("plain", (LENS, 3), {"rows": 4}, {"[1]": 3, "rows": 4}),
        ("plain", (LENS, 3), {"depth": 4}, {"[1]": 3, "depth": 4}),
        ("mixed", (LENS, 7), {"rows": 3, "depth": 4}, {"rows": 3, "rest[0]": 7, "depth": 4}),
    ],
)
def test_arguments_have_the_names_that_python_gives_them(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], scalars: dict[str, int]
) -> None:
    watched = Watched(Calls())
    with contextlib.suppress(TypeError):
        getattr(watched.backend, name)(*args, **kwargs)
    assert watched.watch.take(None)[0].scalars == scalars


def test_arguments_of_a_stand_in_have_the_names_that_the_engine_gives_them() -> None:
    def plan_ahead(self: Backend, *given: Any) -> None:
        """Takes whatever the method of any release does."""

    mine = {"plan_ahead": plan_ahead, "__module__": "fuzzgraph.targets.stand_in"}
    stand_in: Any = type("StandIn", (Backend,), mine)()
    call, _ = Watched(stand_in).step(4, 5)
    assert call.to == "Backend.plan_ahead"
    assert list(call.tensors) == ["batch.seq_lens"] and call.scalars["rows"] == 4


class Builder:
    """Gives its metadata to the runner, and holds the server's settings."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.buffer = torch.zeros(4, dtype=torch.int64)

    def build(self, batch: Any) -> Metadata:
        self.buffer[: len(batch.seq_lens)] = batch.seq_lens
        return Metadata(self.buffer[:])

    def build_anew(self, batch: Any) -> Metadata:
        return Metadata(batch.seq_lens.clone())


@dataclass
class Settings:
    """As pydantic validates what a user chose."""

    model: str = "one layer"

    def __post_init__(self) -> None:
        self.devices = torch.arange(4)


Settings.__pydantic_validator__ = "checks values"  # type: ignore[attr-defined]


def batch_of(*lens: int) -> Any:
    return SimpleNamespace(seq_lens=torch.tensor(lens))


def test_what_a_builder_returns_is_held_and_its_settings_are_not() -> None:
    watched = Watched(Builder())
    watched.capturing = True
    watched.backend.build(batch_of(1, 1, 1, 1))
    watched.watch.captured(4)
    watched.capturing = False
    watched.backend.build(batch_of(5, 6, 7))
    watched.graph.before_replay()
    *_, held = watched.watch.take(4)
    assert values(held, "returned.lens") == [5, 6, 7, 1]
    assert held.rebound == held.bound
    assert held.types == {"returned": "Metadata"}


def test_metadata_that_a_builder_makes_anew_lies_where_no_graph_reads_it() -> None:
    watched = Watched(Builder())
    watched.capturing = True
    watched.backend.build(batch_of(1, 1, 1, 1))
    watched.watch.captured(4)
    watched.capturing = False
    watched.backend.build_anew(batch_of(5, 6, 7, 8))
    *_, held = watched.watch.take(4)
    assert held.rebound["returned.lens"] != held.bound["returned.lens"]
    assert values(held, "returned.lens") == [1, 1, 1, 1]


class Model:
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """A graph holds all that happens here."""


def test_a_graph_of_a_whole_model_reads_the_arguments_of_its_call() -> None:
    watched = Watched(Model(), whole=True)
    buffer = torch.ones(4, dtype=torch.int64)
    watched.capturing = True
    watched.backend(input_ids=buffer)
    watched.watch.captured(4)
    watched.capturing = False
    watched.backend(input_ids=torch.tensor([5, 6, 7, 8]))  # the batch lies elsewhere
    watched.graph.before_replay()
    call, held = watched.watch.take(4)
    assert call.to == "Model.__call__" and values(call, "input_ids") == [5, 6, 7, 8]
    assert values(held, "input_ids") == [1, 1, 1, 1]
    assert isinstance(watched.backend, Model)


def test_a_warm_up_of_its_own_is_forgotten() -> None:
    watched = Watched(Model(), whole=True)
    watched.capturing = True
    watched.backend(input_ids=torch.zeros(2, dtype=torch.int64))
    watched.watch.begin()
    watched.backend(input_ids=torch.ones(4, dtype=torch.int64))
    watched.watch.captured(4)
    (call,) = watched.watch.at_capture(4)
    assert call.tensors["input_ids"].shape == (4,)


def test_no_graph_reads_the_memory_of_the_host() -> None:
    watched = Watched()
    lens = torch.ones(4, dtype=torch.int64)
    watched.on_host = [lens, watched.backend.buffer]
    watched.capturing = True
    watched.backend.plan_ahead(SimpleNamespace(seq_lens=lens), 4)
    watched.watch.captured(4)
    watched.capturing = False
    watched.backend.buffer = torch.zeros(4, dtype=torch.int64)
    *_, held = watched.step(5, 6, 7)
    assert "batch.seq_lens" not in held.tensors
    assert held.bound == {}
    assert values(held, "forward_metadata.lens") == [5, 6, 7, 0]


def test_a_wrapper_that_kernels_read_holds_its_own_attributes() -> None:
    class Reallocates(Backend):
        def fill(self, lens: torch.Tensor, rows: int) -> None:
            self.buffer = torch.zeros(4, dtype=torch.int64)

    watched = Watched(Reallocates(), itself=True)
    watched.capture()
    *_, held = watched.step(5, 6, 7)
    assert held.rebound["self.buffer"] != held.bound["self.buffer"]
    assert "batch.seq_lens" not in held.tensors  # it was copied by the wrapper's own code


def test_two_watches_of_one_graph_both_see_what_it_is_about_to_read() -> None:
    first, second = Watched(), Watched()
    second.graph = first.graph
    second.watch._graphs = first.watch._graphs
    inputs = [watched.capture() for watched in (first, second)]
    for each in inputs:
        each.fill_(7)
    first.graph.before_replay()
    for each in inputs:
        each.zero_()
    for watched in (first, second):
        *_, held = watched.watch.take(4)
        assert values(held, "batch.seq_lens") == [7, 7, 7, 7]
