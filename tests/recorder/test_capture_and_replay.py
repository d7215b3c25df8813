"""What a graph freezes and what it sees: the recorder behaves as a device graph does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fuzzgraph.graphs import Recorder, open_engine
from fuzzgraph.graphs.playback import copy_back, straight_into
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.operator_facts import facts_of
from fuzzgraph.observation import Engagement


def engine(*tensors: torch.Tensor) -> tuple[GuardedMemory, Recorder, list[torch.Tensor]]:
    """Guarded memory with copies of these buffers, and a recorder on it."""
    memory = GuardedMemory()
    with memory.intercept("engine"):
        buffers = [tensor.clone() for tensor in tensors]
    return memory, Recorder(memory), buffers


def test_a_replay_sees_what_was_written_into_a_captured_buffer() -> None:
    _, recorder, (x,) = engine(torch.arange(4.0))
    graph = recorder.capture(lambda: x * 2, key="k")
    x.fill_(5)
    graph.replay()
    assert graph.outputs.tolist() == [10.0] * 4


def test_a_scalar_is_frozen_at_capture() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    scale = [3.0]
    graph = recorder.capture(lambda: x * scale[0], key="k")
    scale[0] = 7.0
    graph.replay()
    assert graph.outputs.tolist() == [3.0, 3.0]


def test_a_buffer_that_was_replaced_goes_unseen() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    held = {"x": x}
    graph = recorder.capture(lambda: held["x"] + 1, key="k")
    held["x"] = torch.full((2,), 9.0)
    graph.replay()
    assert graph.outputs.tolist() == [2.0, 2.0]


def test_a_captured_tensor_object_may_be_pointed_elsewhere_without_effect() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    graph = recorder.capture(lambda: x + 1, key="k")
    x.set_(torch.full((2,), 9.0))  # type: ignore[call-overload]  # its stubs lack this form
    graph.replay()
    assert graph.outputs.tolist() == [2.0, 2.0]


def test_a_list_of_tensors_is_frozen_at_capture() -> None:
    _, recorder, (x, y) = engine(torch.ones(1), torch.zeros(1))
    parts = [x, y]
    graph = recorder.capture(lambda: torch.cat(parts), key="k")
    parts.clear()
    graph.replay()
    assert graph.outputs.tolist() == [1.0, 0.0]


def test_the_branch_taken_at_capture_is_the_one_replayed() -> None:
    _, recorder, (x,) = engine(torch.ones(1))
    flag = [True]
    graph = recorder.capture(lambda: x + 1 if flag[0] else x - 1, key="k")
    flag[0] = False
    graph.replay()
    assert graph.outputs.tolist() == [2.0]


def test_in_place_work_is_done_again() -> None:
    _, recorder, (x, index) = engine(torch.zeros(4), torch.tensor([1, 3]))

    def forward() -> None:
        x[index] = x.index_select(0, index) + 1
        x[:2].mul_(2)

    graph = recorder.capture(forward, key="k")
    assert x.tolist() == [0.0, 2.0, 0.0, 1.0]
    graph.replay()
    assert x.tolist() == [0.0, 6.0, 0.0, 2.0]


def test_a_view_returned_by_the_forward_follows_the_replay() -> None:
    _, recorder, (x,) = engine(torch.arange(4.0))
    graph = recorder.capture(lambda: (x + 1)[1:].view(1, 3), key="k")
    x.add_(10)
    graph.replay()
    assert graph.outputs.tolist() == [[12.0, 13.0, 14.0]]


def test_an_operation_with_several_results_is_replayed_into_all_of_them() -> None:
    _, recorder, (x,) = engine(torch.tensor([3.0, 1.0, 2.0]))
    graph = recorder.capture(lambda: x.sort(), key="k")
    x.copy_(torch.tensor([5.0, 6.0, 4.0]))
    graph.replay()
    assert graph.outputs.values.tolist() == [4.0, 5.0, 6.0]
    assert graph.outputs.indices.tolist() == [2, 0, 1]


def test_memory_without_content_is_not_filled_by_a_replay() -> None:
    memory, recorder, (x,) = engine(torch.ones(2))

    def forward() -> torch.Tensor:
        out = torch.empty(3)
        out[:2].copy_(x)
        return out

    graph = recorder.capture(forward, key="k")
    graph.replay()
    assert graph.outputs.tolist() == [1.0, 1.0, 1008.0]
    memory.zone_perturbation(1).apply()
    graph.replay()
    assert graph.outputs.tolist() == [1.0, 1.0, -624.0]


def test_an_out_argument_that_grows_in_the_capture_is_replayed_in_its_new_place() -> None:
    _, recorder, (x,) = engine(torch.arange(4.0))
    graph = recorder.capture(lambda: torch.cumsum(x, 0, out=torch.empty(0)), key="k")
    x.fill_(1)
    graph.replay()
    assert graph.outputs.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_elements_of_a_tensor_that_grows_in_the_capture_come_along_in_a_replay() -> None:
    _, recorder, (x,) = engine(torch.ones(2))

    def forward() -> torch.Tensor:
        grown = x + 1
        grown.resize_(40)
        grown[2:].zero_()
        return grown

    graph = recorder.capture(forward, key="k")
    x.fill_(6)
    graph.replay()
    assert graph.outputs.tolist() == [7.0, 7.0] + [0.0] * 38


def test_parameters_that_want_gradients_can_be_captured() -> None:
    memory, recorder, (x,) = engine(torch.ones(2, 2))
    with memory.intercept("engine"):
        linear = torch.nn.Linear(2, 2)
    with torch.no_grad():
        graph = recorder.capture(lambda: linear(x), key="k")
        x.fill_(3)
        graph.replay()
        assert torch.equal(graph.outputs, linear(x))


def test_a_graph_can_be_captured_and_replayed_in_inference_mode() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    with torch.inference_mode():
        graph = recorder.capture(lambda: x + 1, key="k")
        graph.replay()
    graph.replay()
    graph.outputs.add_(1)
    assert graph.outputs.tolist() == [3.0, 3.0]


def test_a_replay_inside_interception_allocates_nothing() -> None:
    memory, recorder, (x,) = engine(torch.tensor([3.0, 1.0]))
    graph = recorder.capture(lambda: x.sort(), key="k")
    regions = len(memory.regions)
    with memory.intercept("engine"):
        graph.replay()
    assert len(memory.regions) == regions


def test_outputs_keep_their_address() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    graph = recorder.capture(lambda: x + 1, key="k")
    address = graph.outputs.data_ptr()
    graph.replay()
    assert graph.outputs.data_ptr() == address


def test_a_replay_overruns_into_a_zone_as_a_kernel_does() -> None:
    memory, recorder, (x,) = engine(torch.zeros(4))
    graph = recorder.capture(lambda: x.as_strided((5,), (1,), x.storage_offset()).add_(1), key="k")
    memory.repair_zones()
    graph.replay()
    (hit,) = memory.zone_hits("replay")
    assert (hit.side, hit.offset, hit.elements) == ("after", 0, 1)


# ---- the shared pool


def test_the_replay_of_another_size_clobbers_the_outputs_of_this_one() -> None:
    _, recorder, (x,) = engine(torch.ones(4))
    large = recorder.capture(lambda: x + 1, key="4")
    small = recorder.capture(lambda: x[:2] + 1, key="2")
    large.replay()
    kept = large.outputs
    small.replay()
    assert kept.tolist() == [1008.0] * 4
    assert small.outputs.tolist() == [2.0, 2.0]


def test_the_pool_is_back_in_the_home_world_after_a_restoration() -> None:
    memory, recorder, _ = engine(torch.ones(2))
    graph = recorder.capture(lambda: torch.empty(2), key="k")
    before = memory.snapshot()
    memory.zone_perturbation(1).apply()
    memory.restore(before)
    graph.replay()
    assert graph.outputs.tolist() == [1008.0] * 2
    assert memory.zones_intact()


def test_an_output_that_a_replay_does_not_write_shows() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    graph = recorder.capture(lambda: {"attention": x + 1, "lse": torch.empty(2)}, key="k")
    graph.replay()
    assert not graph.engaged
    assert graph.engaged.unwritten == ("output['lse']",)


# ---- proof of engagement


def test_a_replay_enters_no_python_of_the_engine() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    calls = []

    def forward() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"attention": x + 1}

    graph = recorder.capture(forward, key="k")
    for _ in range(3):
        graph.replay()
    assert calls == [1]
    assert graph.engaged == Engagement(replays=3, python_calls=0, unwritten=())
    assert graph.engaged


def test_python_that_runs_in_a_replay_is_counted() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    graph = recorder.capture(lambda: x + 1, key="k")
    graph._steps = [*graph._steps, graph._watched]
    graph.replay()
    assert graph.engaged.python_calls == 1
    assert not graph.engaged


# ---- the quick forms give what the plain ones give

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b, i: torch.add(a, b, alpha=2),
    "subtract scalar": lambda a, b, i: a - 1.5,
    "divide down": lambda a, b, i: torch.div(a, 2, rounding_mode="floor"),
    "matmul": lambda a, b, i: a @ b.t(),
    "bmm": lambda a, b, i: torch.bmm(a[None], b.t()[None]),
    "softmax": lambda a, b, i: torch.softmax(a, -1),
    "sum": lambda a, b, i: a.sum(1, keepdim=True),
    "amax": lambda a, b, i: a.amax(-1),
    "cumsum": lambda a, b, i: a.cumsum(0),
    "cat": lambda a, b, i: torch.cat([a, b], 1),
    "stack": lambda a, b, i: torch.stack([a, b]),
    "index": lambda a, b, i: a[i],
    "index_select": lambda a, b, i: a.index_select(0, i),
    "gather": lambda a, b, i: a.gather(0, i[:, None].expand(-1, 4)),
    "embedding": lambda a, b, i: torch.nn.functional.embedding(i, a),
    "where": lambda a, b, i: torch.where(a > b, a, b),
    "masked_fill": lambda a, b, i: a.masked_fill(a > 0, float("-inf")),
    "clamp": lambda a, b, i: a.clamp(min=0.0),
    "compare": lambda a, b, i: a <= b,
    "to half": lambda a, b, i: a.half(),
    "to fp8": lambda a, b, i: a.to(torch.float8_e4m3fn).float(),
    "clone": lambda a, b, i: a.t().clone(),
    "zeros": lambda a, b, i: torch.zeros(3, dtype=torch.int32),
    "full": lambda a, b, i: torch.full((2, 2), 1.5),
    "arange": lambda a, b, i: torch.arange(1, 9, 2),
    "logsumexp": lambda a, b, i: a.logsumexp(-1),
    "repeat_interleave": lambda a, b, i: a.repeat_interleave(2, 0),
    "pad": lambda a, b, i: torch.nn.functional.pad(i, (1, 0)),
    "einsum": lambda a, b, i: torch.einsum("td,sd->ts", a, b),
    "transposed sum": lambda a, b, i: (a.t() + b.t()).contiguous(),
    "argmax": lambda a, b, i: a.argmax(-1),
    "bitwise": lambda a, b, i: (i << 2) | 1,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_replay_gives_the_bytes_of_an_eager_run(
    operation: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    generator = torch.Generator().manual_seed(7)
    a, b, c, d = (torch.randn(3, 4, generator=generator) for _ in range(4))
    memory, recorder, (x, y, index) = engine(a, b, torch.tensor([2, 0, 1]))
    graph = recorder.capture(lambda: operation(x, y, index), key="k")
    x.copy_(c)
    y.copy_(d)
    index.copy_(torch.tensor([1, 1, 0]))
    expected = operation(x, y, index)
    graph.replay()
    assert torch.equal(graph.outputs, expected)
    assert graph.outputs.dtype == expected.dtype
    assert memory.zones_intact()


def test_the_quick_form_rewrites_the_result_as_the_copied_one_does() -> None:
    func = torch.ops.aten.add.Tensor
    a, b = torch.arange(4.0), torch.ones(4)
    quick, plain = a + b, a + b
    straight = straight_into(func, facts_of(func), (a, b), {}, quick)
    assert straight is not None
    a.mul_(3)
    straight()
    copy_back(func, (a, b), {}, [plain])()
    assert torch.equal(quick, plain)
    assert quick.tolist() == [1.0, 4.0, 7.0, 10.0]


def test_a_result_with_an_odd_stride_in_a_dimension_of_one_is_replayed() -> None:
    func = torch.ops.aten.neg.default
    argument, result = torch.ones(1, 1), torch.empty_strided((1, 1), (4, 4)).fill_(-1.0)
    assert result.is_contiguous()
    straight = straight_into(func, facts_of(func), (argument,), {}, result)
    assert straight is not None
    argument.fill_(2.0)
    straight()
    assert result.item() == -2.0


def test_a_random_operation_is_drawn_again_in_every_replay() -> None:
    _, recorder, (x,) = engine(torch.zeros(8))
    graph = recorder.capture(lambda: torch.rand_like(x), key="k")
    torch.manual_seed(1)
    graph.replay()
    drawn = graph.outputs.clone()
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand_like(x))
    graph.replay()
    assert not torch.equal(drawn, graph.outputs)


# ---- the trace


def test_the_trace_names_operation_arguments_and_line() -> None:
    _, recorder, (x,) = engine(torch.ones(2))
    graph = recorder.capture(lambda: (x * 2.0)[:1], key="k")
    multiply, view = graph.trace
    assert multiply.name == "aten.mul.Tensor"
    assert multiply.args[0].data_ptr() == x.data_ptr() and multiply.args[1] == 2.0
    assert multiply.outputs[0].data_ptr() == graph.outputs.data_ptr()
    assert multiply.source.startswith("test_capture_and_replay.py:")
    assert (multiply.replayed, view.replayed) == (True, False)


def test_open_engine_gives_the_recorder_by_name() -> None:
    assert isinstance(open_engine("recorder", GuardedMemory()), Recorder)
