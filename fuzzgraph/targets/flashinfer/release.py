"""The FlashInfer of this process: one unpacked release, or an installed one.

Its Python runs up to the modules that it compiles; see `compiled`. On a machine without a GPU the
device is said to be a Hopper GPU of `cuda_on_cpu`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.relays import relay
from fuzzgraph.targets.flashinfer import compiled
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu
from fuzzgraph.targets.offline.package import EnginePackage
from fuzzgraph.targets.offline.stub import Stub

__all__ = ["FLASHINFER", "WORKSPACE_BYTES", "float_workspace_bytes", "load", "workspaces_are_small"]

_KERNELS = "compiles and loads kernels; models take their places"
_DEVICE = "asks the driver about the device; `cuda_on_cpu` answers"

FLASHINFER = EnginePackage(
    "flashinfer",
    absent={
        "cuda": _DEVICE,
        "ninja": _KERNELS,
        "pynvml": _DEVICE,
        "requests": "downloads compiled kernels",
        "tabulate": "prints tables of compiled kernels",
        "tvm_ffi": _KERNELS,
    },
    bare=True,  # its __init__ imports kernels of every kind
    settings="FLASHINFER_",
    example="0.7.2",
    companions="pip install it",
)

WORKSPACE_BYTES = 4096
"""Of a workspace here: guarded memory is compared at every step. It has room for a plan of 339
rows; no model reads a float workspace."""
_TILE, _LSE_BYTES, _ALIGNMENT = 64, 4, 16
"""Rows of a tile of latent attention, and bytes of partial results (FlashInfer scheduler.cuh,
MLAPlan)."""
_INT_WORKSPACE = 8 << 20
"""Bytes of a wrapper's integer workspace (FlashInfer decode.py, prefill.py, mla)."""
_SHARED_MEMORY = {
    # NVIDIA, Tuning CUDA Applications for Hopper: 228 KiB on a multiprocessor, 227 KiB for a block.
    "shared_memory_per_multiprocessor": 228 << 10,
    "shared_memory_per_block_optin": 227 << 10,
}
_LATENT_CHECKS = "flashinfer.mla._batch_mla._backends._fa_common"
_HOPPER_DIMS = "is_fa3_prefill_head_dim_supported"
_DIMS = (64, 128, 256)
"""Of FlashAttention 3 (FlashInfer hopper/prefill_sm90.cuh)."""
_SINCE_0_6 = "_split_scale_param"
"""A function of the prefill's module, as old as the order of arguments that `compiled` takes."""
_WIDEST_BATCH, _MOST_HEADS = 1 << 10, 64


def float_workspace_bytes(config: EngineConfig) -> int:
    """Of a float workspace here; for latent attention it has room for the partial outputs that a
    plan may ask for, as the release checks from 0.7.4 on (mla/_batch_mla/_backends/_fa_common.py).
    """
    if config.attention != "mla":
        return WORKSPACE_BYTES
    multiprocessors: int = DEVICE["get_device_properties"]().multi_processor_count
    rows = 2 * multiprocessors * _TILE
    return rows * (2 * config.head_dim + _LSE_BYTES) + _ALIGNMENT


def load(*modules: str) -> None:
    """Import these modules of the release, and let them compile to models.

    Raises:
        AdapterUnavailable: the release is not here, lacks one, or is too old.
    """
    with cuda_on_cpu({**DEVICE, **STREAMS}):
        FLASHINFER.load(*modules)
    if not hasattr(FLASHINFER.module("flashinfer.prefill"), _SINCE_0_6):
        raise AdapterUnavailable(
            f"flashinfer {FLASHINFER.release()} hands its kernels other arguments than later "
            "releases. Name one from 0.6.3 on, for example --release 0.7.2."
        )
    compiled.compile_to_models()
    if not torch.cuda.is_available():
        _be_hopper()
    _keep_ranges()


def _be_hopper() -> None:
    """Answer what the release asks of its device, in each module that has the name."""
    device = Stub(**vars(DEVICE["get_device_properties"]()), **_SHARED_MEMORY)
    utils = vars(FLASHINFER.module("flashinfer.utils"))
    if utils["get_compute_capability"].__module__ == __name__:
        return
    asked: dict[Any, Callable[..., Any]] = {
        utils["get_compute_capability"]: _told((device.major, device.minor)),
        utils["version_at_least"]: _newest_if_none(utils["version_at_least"]),
    }
    if "get_device_properties" in utils:  # before 0.6.18 it asks torch
        asked[utils["get_device_properties"]] = _told(device)
    if _HOPPER_DIMS in utils:  # from 0.6.15 on
        asked[utils[_HOPPER_DIMS]] = _of_hopper_dims(utils[_HOPPER_DIMS])
    if FLASHINFER.has_module(_LATENT_CHECKS):
        check = FLASHINFER.module(_LATENT_CHECKS)._validate_generated_fa_plan
        asked[check] = _with_built_dims(check)
    answers = {id(function): answer for function, answer in asked.items()}
    for module in compiled.imported_modules():
        for name, held in list(vars(module).items()):
            if id(held) in answers:
                setattr(module, name, answers[id(held)])


def _told(answer: Any) -> Callable[[Any], Any]:
    """The answer for any device; what names none is refused by torch, as it would be."""

    @relay
    def of_device(device: Any) -> Any:
        if isinstance(device, str):
            torch.device(device)
        return answer

    return of_device


def _newest_if_none(at_least: Callable[..., bool]) -> Callable[..., bool]:
    """torch for CPUs has no version of CUDA."""

    @functools.wraps(at_least)
    def answer(version: str | None, base_version: str) -> bool:
        return version is None or at_least(version, base_version)

    return answer


def _with_built_dims(validate: Callable[..., None]) -> Callable[..., None]:
    """Latent kernels are built for multiples of 128 and 64 columns; models take any, few are fast.

    The release's own check sees the dims rounded up, and refuses all else that it refuses.
    """

    @functools.wraps(validate)
    def rounded_up(*, head_dim_ckv: int, head_dim_kpe: int, **others: Any) -> None:
        ckv, kpe = -(-head_dim_ckv // 128) * 128, -(-head_dim_kpe // 64) * 64
        validate(head_dim_ckv=ckv, head_dim_kpe=kpe, **others)

    return rounded_up


def _of_hopper_dims(supported: Callable[[int, int], bool]) -> Callable[[int, int], bool]:
    """FlashAttention 3 is built for three dims; models take any, few are fast.

    The release's own choice between 2 and 3 sees both rounded up to one of these.
    """

    @functools.wraps(supported)
    def rounded_up(head_dim_qk: int, head_dim_vo: int) -> bool:
        dims = (next((each for each in _DIMS if each >= dim), dim)
                for dim in (head_dim_qk, head_dim_vo))  # fmt: skip
        return supported(*dims)

    return rounded_up


def _keep_ranges() -> None:
    """Fill the cache that outlives wrappers, so that no session's memory ends up in it."""
    utils: Any = FLASHINFER.module("flashinfer.utils")
    size = 1
    while size <= _WIDEST_BATCH:
        utils._get_range_buf(size, "cpu")
        size *= 2
    for heads in range(1, _MOST_HEADS + 1):
        utils._get_cache_alibi_slopes_buf(heads, torch.device("cpu"))


class _SmallWorkspaces(TorchFunctionMode):
    """An integer workspace has `WORKSPACE_BYTES`, on the device and pinned."""

    @relay
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.empty and tuple(args[:1]) in (((_INT_WORKSPACE,),), (_INT_WORKSPACE,)):
            args = ((WORKSPACE_BYTES,), *args[1:])
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def workspaces_are_small() -> Iterator[None]:
    """Around code of the release that may allocate a wrapper's workspaces."""
    with cuda_on_cpu({**DEVICE, **STREAMS}), _SmallWorkspaces():
        yield
