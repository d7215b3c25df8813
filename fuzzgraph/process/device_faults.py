"""Recognises device faults in the text of drivers: CUDA, HIP, HSA and kernel-log lines.

Only text is left to read, because the process may be dead, and because a fault shows up at some
later call. A fault here destroyed the device's context or stopped a kernel; a refused launch or a
lack of memory is an ordinary exception. Where hardware fails, or the device is not to be had, no
code is at fault: `unusable_in` tells that apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Api = Literal["CUDA", "HIP", "HSA", "NVRM", "amdgpu"]


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """One fault, named as its API names it."""

    name: str
    """E.g. 'illegal address', 'HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION', 'Xid 31'."""
    api: Api
    line: str
    """The line of the text that names it."""
    sticky: bool = True
    """Whether every later call in the same process fails too."""


# Errors after which the context is lost, by the CUDA and HIP runtime documentation.
_RUNTIME = {  # words of cudaGetErrorString and hipGetErrorString -> our name
    "an illegal memory access was encountered": "illegal address",
    "misaligned address": "misaligned address",
    "an illegal instruction was encountered": "illegal instruction",
    "invalid program counter": "invalid program counter",
    "hardware stack error": "hardware stack error",
    "operation not supported on global/shared address space": "invalid address space",
    "device-side assert triggered": "device-side assert",
    "unspecified launch failure": "launch failure",
    "the launch timed out and was terminated": "launch timeout",
    "uncorrectable ECC error encountered": "ECC error",
    "uncorrectable NVLink error detected during the execution": "NVLink error",
}

_RUNTIME_LINE = re.compile(
    r"(?:(?P<api>CUDA|HIP) error|Triton Error \[(?P<triton>CUDA|HIP)\]|(?P<code>cuda|hip)Error\w*)"
    rf"[^\n]*?(?P<words>{'|'.join(map(re.escape, _RUNTIME))})"
)
# Out of resources is left out: the context survives it.
_HSA = re.compile(r"(?P<name>HSA_STATUS_ERROR_(?!OUT_OF_RESOURCES)\w+)")
_ROCR = re.compile(r"Memory access fault by GPU node-\d+|HW Exception by GPU node-\d+")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (?P<number>\d{1,6})")
_AMDGPU = re.compile(
    r"amdgpu\b[^\n]*\[\w+hub\w*\] (?:\S+ )?page fault|amdgpu\b[^\n]*GPU reset begin"
)


def fault_in(text: str) -> DeviceFault | None:
    """The first fault that a text names, which is the cause of later ones; None if it names none.

    >>> fault_in("RuntimeError: CUDA error: an illegal memory access was encountered").name
    'illegal address'
    """
    found = [(match.start(), fault) for match, fault in _all_in(text)]
    return min(found, key=lambda one: one[0])[1] if found else None


# What a runtime says of a device that it cannot get or has lost, whoever asks for it.
_UNUSABLE = re.compile(
    r"devices? ?(?:\(s\))? (?:is/are|are) busy or unavailable"
    r"|no (?:CUDA|ROCm)-capable device is detected"
    r"|The NVIDIA driver on your system is too old"
    r"|(?:CUDA|HIP) driver version is insufficient for"
    r"|(?:CUDA|HIP) driver initialization failed"
    r"|unsupported display driver / cuda driver combination"
    r"|GPU is lost|fallen off the bus"
    r"|uncorrectable ECC error encountered"
    r"|uncorrectable NVLink error detected"
)
# Of hardware, not of a kernel: memory, NVLink, the bus, the system processor of the GPU (NVIDIA,
# GPU Deployment and Management, Xid errors).
_XIDS_OF_HARDWARE = frozenset({48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 121, 136, 140, 143})


def unusable_in(text: str) -> str:
    """The first line that says that a device failed by itself or is not to be had; '' for none.

    >>> unusable_in("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    'RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable'
    >>> unusable_in("RuntimeError: CUDA error: device-side assert triggered")
    ''
    """
    found = [match for match in (_UNUSABLE.search(text),) if match is not None]
    found += [match for match in _XID.finditer(text) if int(match["number"]) in _XIDS_OF_HARDWARE]
    return _line(min(found, key=lambda match: match.start())) if found else ""


def _all_in(text: str) -> list[tuple[re.Match[str], DeviceFault]]:
    found = []
    if match := _RUNTIME_LINE.search(text):
        api = (match["api"] or match["triton"] or match["code"]).upper()
        name = _RUNTIME[match["words"]]
        found.append((match, DeviceFault(name, "HIP" if api == "HIP" else "CUDA", _line(match))))
    if match := _HSA.search(text):
        found.append((match, DeviceFault(match["name"], "HSA", _line(match))))
    if match := _ROCR.search(text):
        name = "hardware exception" if match[0].startswith("HW") else "memory access fault"
        found.append((match, DeviceFault(name, "HSA", _line(match))))
    if match := _XID.search(text):
        found.append((match, DeviceFault(f"Xid {match['number']}", "NVRM", _line(match))))
    if match := _AMDGPU.search(text):
        name = "GPU reset" if "reset" in match[0] else "page fault"
        found.append((match, DeviceFault(name, "amdgpu", _line(match))))
    return found


def _line(match: re.Match[str]) -> str:
    """The line around a match, without the spaces that pad it."""
    text = match.string
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return " ".join(text[start : end if end >= 0 else len(text)].split())[:400]
