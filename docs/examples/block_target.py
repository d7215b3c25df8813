"""FuzzGraph's target for `block_engine`: where the two meet, and nothing else."""

import block_engine as engine
import torch

import fuzzgraph.target as fz


class BlockSession:
    runner_class = engine.DecodeRunner
    fields = (
        fz.Field("input_ids", "tokens", "nothing", fz.PaddingRule("free")),
        fz.Field("positions", "tokens", "nothing", fz.PaddingRule("free")),
        fz.Field("slot_mapping", "tokens", "slot", fz.PaddingRule("skip", -1), source="reset"),
        fz.Field("lengths", "requests", "length", fz.PaddingRule("fill", 0), repeats="seq_lens"),
        fz.Field("block_tables", "page_table", "page", fz.PaddingRule("reserved"), source="reset"),
    )

    def __init__(self, config, graphs):
        content, device = fz.content_for(config), graphs.device
        blocks, size = fz.FIRST_PAGE + config.kv_pool_pages, config.page_size
        weights = [content.weights[name].to(device) for name in ("embed", "pos_embed")]
        shapes = map(torch.Size, content.plane_shapes)
        self.cache = engine.BlockCache(blocks, size, *shapes, content.dtype, device)
        self.runner = self.runner_class(
            engine.Model(*weights, torch.Size((config.num_q_heads, config.head_dim))), self.cache,
            config.capture_bs, max_blocks=-(-config.max_context_len // size),
            make_graph=lambda forward: graphs.capture(forward, key="decode"),
        )  # fmt: skip
        self.pools = fz.Pools(kv_planes=(self.cache.keys, self.cache.values))
        self.roots = {"runner": self.runner, "cache": self.cache}

    def promised_outputs(self, mode):
        return ("attention",)

    def keeps_outputs(self, mode):
        return False

    def warm_up(self):
        self.runner.forward(self.runner.static, 1)

    def capture(self):
        self.runner.capture()
        self.frozen = {name: t.data_ptr() for name, t in self.shown(self.runner.static).items()}

    def shown(self, inputs):
        return {field.name: getattr(inputs, field.name) for field in self.fields}

    def requests(self, batch):
        rows = enumerate(zip(batch.input_ids.tolist(), batch.seq_lens.tolist(), strict=True))
        return [engine.Request(*row, batch.pages.row(at).tolist()) for at, row in rows]

    def prepare_replay(self, batch):
        self.inputs, self.rows = self.runner.static, self.runner.graph_size(batch.raw_bs)
        if self.rows is None:
            return self.eager(batch)  # as the engine does above its ladder
        self.inputs.fill(self.requests(batch), self.rows)

    def replay(self, batch):
        if self.inputs is self.runner.static:
            self.runner.graphs[self.rows].replay()
            self.attention = self.runner.graphs[self.rows].outputs

    def eager(self, batch):
        self.inputs, self.attention = self.runner.eager(self.requests(batch))
        self.rows = batch.raw_bs

    def observe(self, batch):
        used = {name: seen[: self.rows].clone() for name, seen in self.shown(self.inputs).items()}
        attention = {"attention": self.attention.clone()}
        return fz.Observation(batch.raw_bs, self.rows, batch.num_tokens, self.rows, attention, used)

    def results(self):
        return {"attention": self.attention}

    def captured_addresses(self):
        static = self.shown(self.runner.static)
        return {name: (tensor, self.frozen[name]) for name, tensor in static.items()}

    def capture_values(self, batch):
        return {}

    def close(self):
        self.runner.graphs.clear()


class BlockTarget:
    name, engine_packages = "block", ("block_engine",)
    # One map serves either layout.
    capabilities = fz.Capabilities(page_sizes=(1, 4, 16), page_maps=("csr", "page_table"))

    def unsupported(self, config):
        return fz.unsupported_setting(self.capabilities, config)

    def open(self, config, graphs):
        return BlockSession(config, graphs)
