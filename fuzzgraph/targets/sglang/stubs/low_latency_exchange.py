"""DeepEP's `Buffer` in low-latency mode, stood in for by a model of its kernels and by what the
other ranks send.

There is one process. The others' live tokens follow from the batch, as `stubs.expert_ranks` draws
them; their padded ones are sent nowhere, for their engines mask them as this one does. For a token
of this rank an expert elsewhere gives what it computes of the row that it was sent, whatever that
is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.capture_sizes import most_tokens_of_a_rank
from fuzzgraph.data_ranks import tokens_of_ranks
from fuzzgraph.errors import EngineError
from fuzzgraph.experts.columns import EXPERT_WIDTH
from fuzzgraph.experts.routing import expert_weights, experts_of_tokens
from fuzzgraph.experts.weights import down_weight, gate_up_weight
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.low_latency import Exchange, Handle
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.stubs.expert_ranks import rows_of_tokens
from fuzzgraph.world import Batch

_SOURCE = "DeepEP 04b06f7, deep_ep/buffer.py"
_OF_THE_FORMAT = {
    "use_fp8": False, "round_scale": False, "use_ue8m0": False, "use_nvfp4": False,
    "async_finish": False,
}  # fmt: skip


def most_sent(config: EngineConfig) -> int:
    """Tokens of a rank that an exchange of a case's server has room for: all that a rank may have,
    in fours, as DeepEP asks of the rows of all ranks."""
    return -(-most_tokens_of_a_rank(config) // 4) * 4


class LowLatencyBuffer:
    """What `deep_ep.Buffer` is on the case's rank.

    Args:
        own: [VOCAB, columns] what each token brings to the layer itself.
    """

    low_latency_mode = True
    dirty = False
    """Whether kernels for prompts have left it so; a server in this mode has none."""

    def __init__(self, config: EngineConfig, device: torch.device, own: torch.Tensor) -> None:
        self._config, self._own = config, own.cpu()
        self.group_size, self.rank = config.dp_size, config.dp_rank
        self.most = most_sent(config)
        self.exchange = Exchange(
            rank=config.dp_rank, ranks=config.dp_size, experts=config.num_experts, most=self.most,
            each=config.experts_per_token, columns=EXPERT_WIDTH, device=device,
        )  # fmt: skip

        def of_experts(weight: Callable[[int], torch.Tensor]) -> torch.Tensor:
            stacked = torch.stack([*map(weight, range(config.num_experts))])
            return torch.empty_like(stacked, device=device).copy_(stacked)

        self._gates_and_ups = of_experts(gate_up_weight)
        self._downs = of_experts(down_weight)

    def past(self, batch: Batch) -> Iterable[tuple[torch.Tensor, Any, torch.Tensor]]:
        """What the others send in this step: memory, an index into it, what is put there."""
        exchange = self.exchange
        chosen = experts_of_tokens(self._config)
        ids = torch.full_like(exchange.others_ids, -1, device="cpu")
        weights = torch.zeros_like(exchange.others_weights, device="cpu")
        for rank, tokens in enumerate(tokens_of_ranks(batch, self._config)):
            if rank == self.rank:
                continue
            live = slice(0, len(tokens))
            ids[rank, live] = torch.from_numpy(chosen[tokens])
            for place, token in enumerate(tokens.tolist()):
                weights[rank, place] = expert_weights(token, self._config)
            rows = rows_of_tokens(self._own, torch.from_numpy(tokens), batch.step, rank)
            yield exchange.others, (rank, live), rows
        yield exchange.others_ids, slice(None), ids
        yield exchange.others_weights, slice(None), weights

    def given_of_ranks(self, sizes: list[int]) -> torch.Tensor:
        """[tokens of all ranks, columns] what this rank's experts gave in the last run.

        Args:
            sizes: tokens of each rank.
        """
        return torch.cat(
            [part[:size] for part, size in zip(self.exchange.given, sizes, strict=True)]
        )

    # As the engine calls it

    def clean_low_latency_buffer(self, most_tokens: int, columns: int, experts: int) -> None:
        self.exchange.clean()

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        return_recv_hook: bool = False,
        use_fp8: bool = True,
        **more: Any,
    ) -> tuple[Any, ...]:
        """Received rows, their counts, a handle, an event, what receives them."""
        call = Call("low_latency_dispatch", _SOURCE)
        call.leaves_out({"use_fp8": use_fp8, **more}, _OF_THE_FORMAT)
        self._demand("num_experts", num_experts, self._config.num_experts)
        self._demand(
            "num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank, self.most
        )
        packed = self.exchange.send_tokens(x, topk_idx)
        hook = self._received(return_recv_hook, lambda: self.exchange.receive_tokens(packed))
        return packed.rows, packed.counts, packed.handle, _EVENT, hook

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: Handle,
        return_recv_hook: bool = False,
        **more: Any,
    ) -> tuple[Any, ...]:
        """The sums of this rank's tokens, an event, what receives them."""
        Call("low_latency_combine", _SOURCE).leaves_out(more, _OF_THE_FORMAT)
        if not isinstance(handle, Handle):
            raise EngineError(f"low_latency_combine got handle={handle!r}, which no dispatch gave")
        half, combined = self.exchange.send_results(x, topk_idx, topk_weights, handle)

        def receive() -> None:
            weights = self._gates_and_ups, self._downs
            self.exchange.compute_elsewhere(handle, half, *weights)
            self.exchange.receive_results(combined, topk_idx, topk_weights, half)

        return combined, _EVENT, self._received(return_recv_hook, receive)

    @staticmethod
    def _received(hooked: bool, receive: Callable[[], None]) -> Callable[[], None] | None:
        """What is called to receive; without a hook it is received at once."""
        if hooked:
            return receive
        receive()
        return None

    @staticmethod
    def _demand(name: str, got: object, same: int) -> None:
        if got != same:
            raise EngineError(f"{name}={got} where all ranks must hold the same value: {same}")


_EVENT = Stub(current_stream_wait=lambda: None)
