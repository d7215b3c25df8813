"""Targets `sglang-vit*`: graphs of a vision encoder (`SGLANG_VIT_ENABLE_CUDA_GRAPH`).

The engine's `ViTCudaGraphRunner` captures the layers of Qwen-VL's encoders when images of a layout
first come, and replays for each later batch that it takes for one of that layout; nothing is
padded. What it hands out goes to the engine's cache of embeddings, which gives it out again when an
image returns. Real are the runner, the attention (of Triton's with its kernel), and the cache. Here
a server has seen each captured count of patches as the fewest images that may have so many, and as
one more; a batch of a layout that it has not seen takes no graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.session import GraphSession
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.platform import cuda_server, in_environment
from fuzzgraph.targets.sglang.stubs.server_args import Configuration
from fuzzgraph.targets.sglang.stubs.tp_groups import with_own_storage
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.targets.sglang.vision_model import (
    ATTENTIONS,
    VISION,
    VisionAttention,
    VisionTower,
)
from fuzzgraph.world import Batch, IntArray

__all__ = ["VisionTarget"]

_MODULE = "sglang.srt.multimodal.vit_cuda_graph_runner"
_CACHE = "sglang.srt.mem_cache.multimodal_cache"
_CACHE_BYTES = 1 << 30
_WITH_GRAPHS = {"SGLANG_VIT_ENABLE_CUDA_GRAPH": "1"}
_WITHOUT = {"SGLANG_VIT_ENABLE_CUDA_GRAPH": "0"}
_LAYOUT = "sglang vit_cuda_graph_runner.py create_graph: where each image of a batch begins"
_NOT_SEEN = (
    "sglang vit_cuda_graph_runner.py run: images of a layout that did not come before are captured "
    "then, which is not driven"
)


class VisionTarget(SglangTarget):
    """The encoder's runner of the sglang release that this process holds."""

    any_page_size = True
    not_on_device = "nothing has run it there"
    outputs_judged = MappingProxyType({"prefill": ""})

    def __init__(self, name: str, attention: str) -> None:
        self.name = name
        self._attention = ATTENTIONS[attention]
        self.about = f"graphs of a vision encoder, {self._attention.about}"
        own = self._attention.stood_in_for
        self.also_stood_in_for = (*own, "patches, projections and the merger of the encoder")
        self.capabilities = Capabilities(
            modes=("prefill",),
            image_encoders=True,
            attention_chunks=True,
            dtypes=("float32", "float16"),
            max_batch=4,
            max_context_len=256,
            max_q_heads=4,
            max_head_dim=64,
            idle_alone=False,
            capture_beyond_pool=False,
        )

    def refused(self, config: EngineConfig) -> str | None:
        if not config.image_encoder:
            return "drives encoders of images alone: image_encoder must be True"
        if config.v_head_dim != config.head_dim:
            return f"v_head_dim={config.v_head_dim} is not driven, only head_dim={config.head_dim}"
        return None

    def modules(self) -> tuple[str, ...]:
        return _MODULE, _CACHE, VISION

    def load(self) -> None:
        super().load()
        module: Any = engine_module(VISION)
        module._is_cuda = True
        for name, model in self._attention.kernels:
            put_model(module, name, model)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> VisionSession:
        return VisionSession(config, graphs, self._attention)


class VisionSession(GraphSession):
    """One runner with the graphs of layouts that have come."""

    def __init__(
        self, config: EngineConfig, graphs: GraphEngine, attention: VisionAttention
    ) -> None:
        super().__init__()
        self._config = config
        self.fields = (fields.offsets("cu_seqlens", repeats="new_lens", source=_LAYOUT),)
        self._of_device = {**CudaGraphs(graphs, "vit").names(), "synchronize": lambda: None}
        self._configuration = Configuration(
            config,
            graphs.device,
            backend="triton",
            speculative=False,
            more={"mm_attention_backend": attention.name},
        )
        self._tower = VisionTower(config, graphs.device, attention)
        with self._engine_runs():
            self.runner = engine_module(_MODULE).ViTCudaGraphRunner(self._tower)
        self._key: Hashable = None
        self._given: dict[str, Any] = {}
        """What the runner is given of a batch, and an encoder without a graph as well."""
        self._layout: tuple[tuple[int, ...], tuple[int, ...] | None] = ((), None)
        """What it is given beside that, to find a graph by: bounds of images and of windows."""
        self._lens: Sequence[int] = ()
        """Patches of each image."""
        self._features = torch.empty(0)

    @property
    def roots(self) -> Mapping[str, object]:
        return {"runner": self.runner}

    @contextlib.contextmanager
    def _engine_runs(self, environment: Mapping[str, str] = _WITH_GRAPHS) -> Iterator[None]:
        device = replaced_names([torch.cuda], self._of_device)
        with in_environment(environment, cuda_server()), device:
            self._configuration.use()
            yield

    def capture(self) -> None:
        """Images come in the order of their sizes, the smallest first."""
        self.capturing = True
        for tokens in self._config.capture_tokens:
            for layout in _layouts(tokens, self._config.max_context_len):
                ids = torch.zeros(tokens, dtype=torch.int64)
                places = np.concatenate([np.arange(each) for each in layout])
                self._take(ids, places, layout)
                self._run()
                self.remember(self._key)
        self.capturing = False

    def _take(self, ids: torch.Tensor, places: IntArray, lens: Sequence[int]) -> None:
        """What the model hands its runner of a batch of images."""
        tower = self._tower
        windows = _windows(lens, self._config.attention_chunk_size)
        order = np.concatenate([np.arange(*window) for window in windows])
        at = torch.from_numpy(places[order]).to(tower.device)
        self._lens = lens
        cosines, sines = (table.index_select(0, at) for table in tower.tables)
        ends, of_images = self._bounds(lens)
        window_ends = back = of_windows = None
        if self._config.attention_chunk_size:
            window_ends, of_windows = self._bounds([end - start for start, end in windows])
            back = torch.from_numpy(np.argsort(order)).to(tower.device)
        self._layout = of_images, of_windows
        self._given = {
            "x": tower.embed.index_select(0, ids[torch.from_numpy(order)].to(tower.device)),
            "cu_seqlens": ends,
            "cu_window_seqlens": window_ends,
            "output_indices": back,
            "rotary_pos_emb_cos": cosines,
            "rotary_pos_emb_sin": sines,
        }
        self._key = call_with_known(
            self.runner._get_graph_key,
            x_3d=self._given["x"][:, None],
            cu_seqlens=self._given["cu_seqlens"],
            cu_window_seqlens=self._given["cu_window_seqlens"],
            attention_layout_key=self._layout,
        )

    def _bounds(self, lens: Sequence[int]) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Where parts of these lengths begin, and the end: for kernels, and to find a graph by."""
        ends = np.cumsum([0, *lens], dtype=np.int32)
        return torch.from_numpy(ends).to(self._tower.device), tuple(ends.tolist())

    def _run(self) -> None:
        with self._engine_runs():
            self._features = call_with_known(
                self.runner.run,
                position_embeddings=None,
                attention_layout_key=self._layout,
                **self._given,
            )

    def _take_batch(self, batch: Batch) -> None:
        lens = batch.new_lens.tolist()
        self._take(torch.from_numpy(batch.input_ids), batch.positions, lens)

    def prepare_replay(self, batch: Batch) -> None:
        """The runner prepares and replays in one call."""
        self._take_batch(batch)
        self.ran_eagerly = self._key not in self.runner.block_graphs
        if self.ran_eagerly:
            self._encode()

    def replay(self, batch: Batch) -> None:
        if not self.ran_eagerly:
            self._run()

    def eager(self, batch: Batch) -> None:
        self._take_batch(batch)
        self.ran_eagerly = True
        self._encode()

    def _encode(self) -> None:
        with self._engine_runs(_WITHOUT):
            self._features = self._tower.encode(**self._given)

    def declined(self, batch: Batch) -> str:
        return _NOT_SEEN if self.ran_eagerly else ""

    def graph_key(self) -> Hashable:
        return self._key

    def static_buffers(self, key: Hashable) -> dict[str, torch.Tensor]:
        return {"cu_seqlens": self.runner.cu_full_len[key]}

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        return batch.raw_bs, batch.num_tokens

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return ("attention",) if mode == "prefill" else ()

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        shape = (self._config.num_q_heads, self._config.head_dim)
        return {"attention": self._features.unflatten(1, shape).clone()}

    def keeps_outputs(self, mode: Mode) -> bool:
        """The cache gives an image's features out again."""
        return True

    def results(self) -> Mapping[str, torch.Tensor]:
        """Features that the cache keeps where the graph has them; others are copied by it."""
        if self.ran_eagerly:
            return {}
        module: Any = engine_module(_CACHE)
        # One for each step: what an earlier one copied would stay to the end of the session.
        cache = module.MultiModalStaticCache(_CACHE_BYTES)
        whole = with_own_storage(self._features)
        kept: dict[str, torch.Tensor] = {}
        for image, part in enumerate(torch.split(whole, list(self._lens), dim=0)):
            cache.set(image, module.EmbeddingResult(embedding=part))
            held = cache.get_single(image).embedding
            if held.data_ptr() == part.data_ptr():
                kept[f"embedding_cache[{image}]"] = held
        return kept


def _windows(lens: Sequence[int], patches: int) -> list[tuple[int, int]]:
    """First patch of each window and the one behind its last, as the layer gets them: of each image
    the last window first, so that the order is another one than that of the patches.

    Args:
        patches: of a window; 0 for whole images.
    """
    found: list[tuple[int, int]] = []
    start = 0
    for length in lens:
        end, width = start + length, patches or length
        begins = reversed(range(start, end, width))
        found += [(at, min(at + width, end)) for at in begins]
        start = end
    return found


def _layouts(tokens: int, longest: int) -> Iterator[tuple[int, ...]]:
    """Of the fewest images that have so many patches together, and of one more."""
    fewest = -(-tokens // longest)
    for count in (fewest, fewest + 1):
        if count <= tokens:
            yield tuple(int(part) for part in np.diff(np.arange(count + 1) * tokens // count))
