"""The engine's own memory: request-to-token table, paged KV, recurrent state, encoder map.

Each pool allocates once and is addressed as a kernel would. Rows, slots and state slots are those
of `fuzzgraph.world`: 0 is reserved, 1 and 2 are the harness's traps.
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.targets.builtin.raw_addressing import Flat, Rows, RowWriter
from fuzzgraph.targets.builtin.shape import DTYPES, pool_rows, pool_slots, table_width


class TokenMap:
    """Slot of each position of each request row: int32 [rows, width]."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.config = config
        self.table = self.allocate(pool_rows(config), self.width(), device)
        self.flat = Flat(self.table)

    def width(self) -> int:
        """Columns: positions a request can have."""
        raise NotImplementedError

    def allocate(self, rows: int, width: int, device: torch.device) -> torch.Tensor:
        """Zeros, so that the reserved row names the reserved slot only."""
        return torch.zeros(rows, width, dtype=torch.int32, device=device)


class ReqToTokenPool(TokenMap):
    """Slots of the decoder's positions."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.page_starts = Rows(self.table, columns=config.page_size)

    def width(self) -> int:
        return table_width(self.config)


class EncoderMap(TokenMap):
    """Slots of the encoder's positions."""

    def width(self) -> int:
        return self.config.max_encoder_len


class PagedKVPool:
    """Keys and values of every slot, or one latent row for both (`attention='mla'`)."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.config = config
        content = content_for(config)
        self.k_scale, self.v_scale = float(content.k_scale), float(content.v_scale)
        self.dtype = self.storage_dtype()
        self.planes = tuple(
            self.allocate((pool_slots(config), *shape), device) for shape in content.plane_shapes
        )
        self._writers = tuple(RowWriter(self._storable(plane)) for plane in self.planes)

    def storage_dtype(self) -> torch.dtype:
        if self.config.kv_dtype == "float8_e4m3fn":
            return torch.float8_e4m3fn
        return DTYPES[self.config.dtype]

    def allocate(self, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=device)

    def keys(self) -> torch.Tensor:
        """[slots, heads, head_dim] in storage dtype."""
        return self.planes[0]

    def values(self) -> torch.Tensor:
        """[slots, heads, v_head_dim] in storage dtype; a part of the keys where latent."""
        if self.config.attention == "mla":
            return self.planes[0][..., : self.config.v_head_dim]
        return self.planes[1]

    def write(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store new rows `k` and `v` [tokens, heads, dim] at `slots` [tokens]."""
        sources = ((k, self.k_scale), (v, self.v_scale))
        for writer, (values, scale) in zip(self._writers, sources, strict=False):
            writer.scatter(slots, self._storable(self.quantize(values, scale)))

    def quantize(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        """Values in storage dtype, divided by `scale` where that is fp8."""
        if values.dtype == self.dtype:
            return values
        return (values / scale).to(self.dtype)

    @staticmethod
    def _storable(values: torch.Tensor) -> torch.Tensor:
        """fp8 as bytes, for indexed copies exist for no fp8 dtype on some devices."""
        return values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values


class StatePool:
    """Recurrent state of every state slot: float32 [slots, width], so that its sums stay exact."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.config = config
        width = content_for(config).weights["state_in"].shape[1]
        self.state = torch.zeros(self.slots(), width, dtype=torch.float32, device=device)
        self._rows, self._writer = Rows(self.state), RowWriter(self.state)

    def slots(self) -> int:
        return pool_rows(self.config)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """[rows, width] the named states."""
        return self._rows.gather(slots)

    def write(self, slots: torch.Tensor, values: torch.Tensor) -> None:
        self._writer.scatter(slots, values)
