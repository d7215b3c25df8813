"""What a scheduler says of how requests sample, and the random numbers that an engine draws by.

The numbers are given, in place of those of the device's generator: the same ones in each run of a
step, and none of them close (`reference.sampled`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.kernel_models import verify_sampling
from fuzzgraph.reference.sampled import VerifyDraws, temperatures
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import VOCAB, Batch

_INFO = "sglang.srt.sampling.sampling_batch_info"
_SAMPLES = "sglang.srt.speculative.dflash_utils"
_PARAMS = "sglang.srt.sampling.sampling_params"
_BESIDE = 16.0
"""Temperature of a greedy request that has one."""


def sampling_info(batch: Batch, config: EngineConfig, device: str) -> Any:
    """The engine's own record of a batch, as `SamplingBatchInfo.from_schedule_batch` makes it; None
    where no request of a case samples.

    A greedy request has its best token alone, beside a temperature of 1, which stands for 0, or
    beside one of its own (sglang sampling_params.py).
    """
    if config.sampling == "greedy":
        return None
    heat = torch.from_numpy(temperatures(batch)).float()
    greedy = heat == 0
    ones, rows = torch.ones(len(heat)), len(heat)
    beside = torch.where(torch.from_numpy(batch.requests) % 2 > 0, _BESIDE, ones)
    return engine_module(_INFO).SamplingBatchInfo(
        temperatures=_on(torch.where(greedy, beside, heat).view(-1, 1), device),
        top_ps=_on(ones, device),
        top_ks=_on(_top_ks(greedy), device),
        min_ps=_on(torch.zeros(rows), device),
        is_all_greedy=bool(greedy.all()),
        is_any_greedy=bool(greedy.any()),
        need_top_p_sampling=False,
        need_top_k_sampling=bool(greedy.any()),
        need_min_p_sampling=False,
        vocab_size=VOCAB,
        device=device,
    )


def top_ks(batch: Batch, config: EngineConfig) -> list[int]:
    """How many of its best tokens each request draws from; a greedy one has one."""
    if config.sampling == "greedy":
        return [1] * batch.raw_bs
    found: list[int] = _top_ks(torch.from_numpy(temperatures(batch)) == 0).tolist()
    return found


def _top_ks(greedy: torch.Tensor) -> torch.Tensor:
    return torch.where(greedy, 1, engine_module(_PARAMS).TOP_K_ALL).int()


def _on(host: torch.Tensor, device: str) -> torch.Tensor:
    """A copy of it there."""
    return torch.empty_like(host, device=device).copy_(host)


@contextlib.contextmanager
def uniform_numbers(draws: VerifyDraws) -> Iterator[None]:
    """Within the block torch draws these, by row and draft or by row, and what draws by them is as
    on a server with CUDA, with models of what is compiled there."""

    def rand(shape: tuple[int, ...], *, dtype: torch.dtype, device: Any) -> torch.Tensor:
        numbers = torch.from_numpy(draws.last if len(shape) == 1 else draws.coins)
        found = torch.zeros(shape, dtype=dtype, device=device)
        # Some kernels are given a number more for each row, which none reads.
        found[..., : numbers.shape[-1]].copy_(numbers)
        return found

    sampler = {
        "_DFLASH_SAMPLING_VERIFY_AVAILABLE": True,
        "top_k_renorm_prob": verify_sampling.top_k_renorm_probs,
        "tree_speculative_sampling_target_only": (
            verify_sampling.tree_speculative_sampling_target_only
        ),
    }
    with (
        replaced_names([torch], {"rand": rand}),
        replaced_names([engine_module(_SAMPLES)], sampler),
    ):
        yield


class ExponentialNoise:
    """Noise that the engine draws in place, for each place of a block one after the other.

    Args:
        rows: of the largest batch, padded rows included.
        steps: drafts of a block.
    """

    def __init__(self, rows: int, steps: int, device: str) -> None:
        self._numbers = torch.ones(steps, rows, VOCAB, device=device)

    def give(self, noise: torch.Tensor) -> None:
        """What the next run draws: [rows, steps, tokens]."""
        given = noise.transpose(0, 1)[: len(self._numbers)]
        self._numbers[:, : given.shape[1]].copy_(given)

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Within the block a run, captured or not, draws them."""
        places = itertools.cycle(self._numbers)

        def draw(noise: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return noise.copy_(next(places)[: len(noise)])

        with replaced_names([torch.Tensor], {"exponential_": draw}):
            yield
