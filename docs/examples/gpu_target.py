"""FuzzGraph's target for `gpu_engine`, which asks for a GPU and gets none."""

import torch

import fuzzgraph.target as fz
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu
from fuzzgraph.targets.offline.package import EnginePackage
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.session import GraphSession
from fuzzgraph.targets.offline.target import ReleasedTarget


def planner(module):
    module.tiles_of = lambda multiprocessors: 2 * multiprocessors


ENGINE = EnginePackage(
    "gpu_engine",
    absent={"fast_kernels": "compiled kernels; metadata code calls none that computes"},
    contents={"fast_kernels.decode": planner},
    bare=True,  # its __init__ connects to a server
)


def engine_runs():
    return cuda_on_cpu({**DEVICE, **STREAMS})


class GpuSession(GraphSession):
    fields = (
        fields.request_rows(source="DecodeRunner.reset"),
        fields.lengths(fill=1, source="DecodeRunner.reset"),
        fields.offsets("kv_indptr", repeats="seq_lens"),
        fields.slot_indices("kv_indices", rewritten=True),
    )

    def __init__(self, config, graphs):
        super().__init__()
        self.cuda_graphs = CudaGraphs(graphs, "decode")
        shape = fz.FIRST_ROW + config.req_pool_size, config.max_context_len
        with engine_runs():
            table = torch.zeros(shape, dtype=torch.int32, device="cuda")
            runner = ENGINE.module("gpu_engine.runner")
            self.runner = runner.DecodeRunner(config.capture_bs, table)
        self.pools = fz.Pools(req_to_token=table)
        self.roots = {"runner": self.runner}

    def capture(self):
        with engine_runs(), replaced_names([torch.cuda], self.cuda_graphs.names()):
            self.runner.capture()
        for size in self.runner.graphs:
            self.remember(size)

    def graph_key(self):
        return self.runner.padded_bs

    def static_buffers(self, key):
        return {field.name: getattr(self.runner, field.name) for field in self.fields}

    def padded_size(self, batch):
        return self.runner.padded_bs, self.runner.padded_bs

    def prepare(self, batch, size):
        with engine_runs():
            self.runner.prepare(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), size)

    def prepare_replay(self, batch):
        self.ran_eagerly = False
        self.prepare(batch, self.runner.size_of(batch.raw_bs))

    def replay(self, batch):
        self.runner.graphs[self.runner.padded_bs].replay()

    def eager(self, batch):
        self.ran_eagerly = True
        self.prepare(batch, batch.raw_bs)
        self.runner.forward(batch.raw_bs)


class GpuTarget(ReleasedTarget):
    name, about, package = "gpu", "gpu_engine's metadata, decode", "gpu_engine"
    capabilities = fz.Capabilities(page_sizes=(1, 16), max_batch=4, eager_steps=False)

    def load(self):
        ENGINE.load("gpu_engine.runner")

    def open_session(self, config, graphs):
        return GpuSession(config, graphs)


class StaleSession(GpuSession):
    """The same engine with a bug that real ones had: padded rows keep what they held."""

    def __init__(self, config, graphs):
        super().__init__(config, graphs)
        self.runner.reset = lambda padded: None


class StaleTarget(GpuTarget):
    def open_session(self, config, graphs):
        return StaleSession(config, graphs)
