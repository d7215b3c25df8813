"""Asks torch whether a device can be used, and says why not."""

from __future__ import annotations

import warnings

from fuzzgraph.errors import DeviceUnavailable

_WAYS_OUT = {
    "busy or unavailable": "Another process may have it for itself ('nvidia-smi' shows that): end "
    "it, or name another device by CUDA_VISIBLE_DEVICES.",
    "driver": "Install the driver that this torch needs, or a torch for this driver.",
    "out of memory": "End what else runs there, or name another device by CUDA_VISIBLE_DEVICES.",
}
_ELSE = "Use --device cpu, or check with 'fuzzgraph doctor'."


def why_no_device() -> str:
    """Why torch sees no GPU at all; '' where it sees one. Takes nothing of it."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of is told below
        if torch.cuda.is_available():
            return ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch is built without
        return first_sentence(error)
    return "it has none"


def why_unusable(device: str) -> str:
    """Why torch cannot compute on a device; '' where it can.

    It takes a context there, so that only the process that is to use the device may ask.
    """
    import torch

    try:
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        return first_sentence(error)
    return ""


def require_usable(device: str) -> None:
    """Refuse a device that cannot be used, in the process that is to use it.

    Raises:
        DeviceUnavailable: says why, and what to do.
    """
    why = "" if device == "cpu" else why_unusable(device)
    if why:
        raise DeviceUnavailable(f"device={device!r} cannot be used: {why}. {way_out(why)}")


def way_out(why: str) -> str:
    """What to do where a device cannot be used for this reason."""
    return next((told for words, told in _WAYS_OUT.items() if words in why), _ELSE)


def first_sentence(error: BaseException) -> str:
    """What an error says, without advice on debugging and addresses of downloads."""
    line = next(iter(str(error).strip().splitlines()), "")
    return " ".join(line.split()).partition(". ")[0].rstrip(".")[:300] or type(error).__name__
