"""The real runners whose graphs break at attention: pieces of the model are captured.

Between two pieces attention runs at every replay, on what the runner has prepared for this step.
Its rows are not padded then, only the tokens that the pieces compute (vLLM gpu_model_runner.py,
execute_model: `pad_attn`; gpu/cudagraph_utils.py: `num_reqs` of None). Which graph a batch takes,
a full one, pieces or none, is up to the engine's dispatcher.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch

from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_graph import RecordedCudaGraph
from fuzzgraph.targets.offline.handed import BackendWatch
from fuzzgraph.targets.vllm.attention_model import OneLayer
from fuzzgraph.targets.vllm.configuration import COMPILED, NOT_COMPILED
from fuzzgraph.targets.vllm.handed import watch_handover
from fuzzgraph.targets.vllm.release import breakable_graphs
from fuzzgraph.targets.vllm.runner_session import RunnerGraphs, RunnerSession
from fuzzgraph.targets.vllm.split_model import CalledDirectly, SplitLayer
from fuzzgraph.world import Batch


class _PieceGraphs(RunnerGraphs):
    """What `torch.cuda.graph` captures is a piece, where the engine captures in pieces."""

    def __init__(
        self,
        graphs: GraphEngine,
        captured: Callable[[RecordedCudaGraph], None],
        in_pieces: Callable[[], bool],
    ) -> None:
        super().__init__(graphs, captured)
        self._in_pieces = in_pieces

    @property
    def pieces(self) -> int:
        """Pieces of the present forward, captured so far."""
        return self._pieces

    @contextlib.contextmanager
    def capture(self, graph: RecordedCudaGraph, *args: Any, **kwargs: Any) -> Iterator[None]:
        if not self._in_pieces():
            with super().capture(graph, *args, **kwargs):
                yield
            return
        with self.record() as graph.captured:
            yield


class InPieces(RunnerSession):
    """What V1 and V2 have alike of graphs that break at attention; some batches take full ones."""

    _to_model: BackendWatch

    def _in_pieces(self) -> bool:
        """Whether pieces were chosen for the last batch."""
        raise NotImplementedError

    def _tokens_of_pieces(self) -> int:
        """Tokens that the pieces chosen for the last batch compute."""
        raise NotImplementedError

    def _stored_by(self) -> dict[str, torch.Tensor]:
        """The slots by which KV is stored, those of padded tokens among them."""
        raise NotImplementedError

    def _read_by_pieces(self) -> dict[str, torch.Tensor]:
        """What the captured pieces read, whole."""
        return self._given()

    @property
    def attention_captured(self) -> bool:  # type: ignore[override]
        return not self._in_pieces()

    def holds(self, watch: BackendWatch) -> bool:
        return watch is self._to_model or super().holds(watch)

    def _remember_read(self, key: Hashable) -> None:
        if self._in_pieces():
            self._read[key] = self._read_by_pieces()
            self.remember(key)
        else:
            super()._remember_read(key)

    def static_buffers(self, key: Hashable) -> Mapping[str, torch.Tensor]:
        return self._read_by_pieces() if self._in_pieces() else super().static_buffers(key)

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if self.ran_eagerly or not self._in_pieces():
            return super().used_metadata(batch, buffers)
        read = {**self._metadata(), **self._stored_by()}
        fresh = {name: each for name, each in read.items() if name not in buffers}
        return self._cut(fresh, *self.padded_size(batch))

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if not self.ran_eagerly and self._in_pieces():
            return batch.raw_bs, self._tokens_of_pieces()
        return super().padded_size(batch)


class BrokenByTheEngine(RunnerSession):
    """With graphs that the engine breaks itself while it captures."""

    @contextlib.contextmanager
    def _server(self) -> Iterator[None]:
        with super()._server(), breakable_graphs():
            yield


class Breakable(BrokenByTheEngine, InPieces):
    """Pieces as the engine cuts them itself while it captures; they store KV."""

    model_class: type[OneLayer] = CalledDirectly
    cudagraph_mode = "FULL_AND_PIECEWISE"

    def _read_by_pieces(self) -> dict[str, torch.Tensor]:
        return {**self._given(), **self._stored_by()}


class PiecewiseSession(InPieces):
    """Pieces as the compiler's backend cuts them, which has KV stored between them too."""

    model_class: type[OneLayer] = SplitLayer
    cudagraph_mode = "PIECEWISE"
    compilation_mode = COMPILED
    _cuda_graphs: _PieceGraphs
    _slots: torch.Tensor | None = None

    def _make_graphs(self, graphs: GraphEngine) -> RunnerGraphs:
        return _PieceGraphs(graphs, self._remember_captured, self._in_pieces)

    def _in_pieces(self) -> bool:
        return self._dispatched is not None and self._dispatched[0].name == "PIECEWISE"

    def _tokens_of_pieces(self) -> int:
        return int(self._dispatched[1].num_tokens)

    def _stored_by(self) -> dict[str, torch.Tensor]:
        return {} if self._slots is None else {"slot_mapping": self._slots}

    def _watch_handover(self, graphs: GraphEngine) -> None:
        self._to_model = watch_handover(self, self.runner, graphs)

    def _spy(self) -> None:
        super()._spy()
        runner, dispatcher = self.runner, self.runner.cudagraph_dispatcher
        runner._get_slot_mappings = self._noted_slots(runner._get_slot_mappings)
        dispatch, run = dispatcher.dispatch, runner._dummy_run

        def dispatched(*args: Any, **kwargs: Any) -> Any:
            chosen = dispatch(*args, **kwargs)
            self._cuda_graphs.begin_forward(chosen[1].num_tokens)
            return chosen

        def dummy_run(*args: Any, **kwargs: Any) -> Any:
            made = run(*args, **kwargs)
            if self.capturing and self._cuda_graphs.pieces:
                self._remember_read(self.graph_key())
            return made

        dispatcher.dispatch, runner._dummy_run = dispatched, dummy_run

    def _noted_slots(self, mapped: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            made = mapped(*args, **kwargs)
            self._slots = made[0][0]
            return made

        return noted

    def _dummy_rows(self) -> int:
        return 0 if self._in_pieces() else super()._dummy_rows()


class FullAndPiecewiseSession(PiecewiseSession):
    """Full graphs of decodes beside them, as a server has them by default."""

    cudagraph_mode = "FULL_AND_PIECEWISE"


class BreakableSession(Breakable, PiecewiseSession):
    """Pieces that the engine cuts itself, and full graphs of decodes, in V1."""

    compilation_mode = NOT_COMPILED
