"""What drivers say is read rightly.

Texts named by a report (repository and number) were printed there; the others are put together from
the words that the runtimes document.
"""

from __future__ import annotations

import pytest

from fuzzgraph.process.device_faults import fault_in

ASYNC = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace \
below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

FAULTS = {
    "sglang 5029": (
        "Exception: Capture cuda graph failed: RuntimeError: CUDA error: an illegal memory access "
        f"was encountered{ASYNC}",
        "CUDA",
        "illegal address",
    ),
    "sglang 15924": (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
        f"group__CUDART__TYPES.html for more information.{ASYNC}",
        "CUDA",
        "illegal address",
    ),
    "sglang 1467": (
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "CUDA",
        "illegal address",
    ),
    "an assertion in a kernel": (
        f"RuntimeError: CUDA error: device-side assert triggered{ASYNC}",
        "CUDA",
        "device-side assert",
    ),
    "ROCm 5742": (
        "torch.AcceleratorError: HIP error: an illegal memory access was encountered\n"
        "Search for `hipErrorIllegalAddress' in https://rocm.docs.amd.com/projects/HIP/en/latest/"
        "index.html for more information.\n"
        "For debugging consider passing AMD_SERIALIZE_KERNEL=3\n",
        "HIP",
        "illegal address",
    ),
    "milabench 335": (
        ":0:rocdevice.cpp            :2984: 159730272363 us: [pid:403868 tid:0x7f37b81ff640] "
        "Callback: Queue 0x7ef728200000 aborting with error : "
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond "
        "the largest legal address. code: 0x29",
        "HSA",
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
    ),
    "parthenon 1101": (
        ":0:rocdevice.cpp            :2660: 556940992572 us: 32834: [tid:0x7f9e41945700] "
        "Device::callbackQueue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: "
        "The agent attempted to access memory beyond the largest legal address. code: 0x29",
        "HSA",
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
    ),
    "SRBMiner-Multi 206": (
        ":0:rocdevice.cpp            :2614: 102457364470 us: 6856 : [tid:0x7fe7bb747700] "
        "Device::callbackQueue aborting with error : HSA_STATUS_ERROR_MEMORY_FAULT: Agent attempted"
        " to access an inaccessible address. code: 0x2b",
        "HSA",
        "HSA_STATUS_ERROR_MEMORY_FAULT",
    ),
    "ROCm 1535": (
        "Memory access fault by GPU node-2 (Agent handle: 0x55fea5592860) on address "
        "0x7fc133800000. Reason: Page not present or supervisor privilege.\nAborted (core dumped)",
        "HSA",
        "memory access fault",
    ),
    "sglang 29160": (
        "NVRM: Xid (PCI:0000:70:00): 31, pid=684430, name=python3, channel 0x00000002, intr "
        "00000000. MMU Fault: ENGINE GRAPHICS GPC1 UNRECOGNIZED_CLIENT faulted @ 0x1827f9_000b4bc0."
        " Fault is of type UNRECOGNIZED_FAULT UNRECOGNIZED_ACCESS_TYPE",
        "NVRM",
        "Xid 31",
    ),
    "flashinfer 3869": (
        "19:14:43  NVRM: Xid (PCI:0000:1a:00): 13, Graphics Exception: ESR 0x57e7b0=0x81e0017 "
        "0x57e7b4=0x24 0x57e7a8=0x1f81fb60 0x57e7ac=0x1174",
        "NVRM",
        "Xid 13",
    ),
    "ROCm 5051": (
        "kernel: amdgpu 0000:0b:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 "
        "pasid:32792)",
        "amdgpu",
        "page fault",
    ),
}
"""Where it comes from -> the text, the API, the name."""

NO_FAULTS = {
    "out of memory on CUDA": "torch.OutOfMemoryError: CUDA out of memory.",
    "out of memory as a runtime error": f"RuntimeError: CUDA error: out of memory{ASYNC}",
    "out of memory on HIP": "torch.OutOfMemoryError: HIP out of memory.",
    "no kernel for this device (autotrain-advanced 737)": (
        "RuntimeError: HIP error: no kernel image is available for execution on the device\n"
    ),
    "refused during capture": (
        f"RuntimeError: CUDA error: operation not permitted when stream is capturing{ASYNC}"
    ),
    "an error of Python": "KeyError: 'illegal'",
    "words without an API": "an illegal memory access was encountered",
    "nothing": "",
}


@pytest.mark.parametrize(("text", "api", "name"), FAULTS.values(), ids=list(FAULTS))
def test_a_fault_is_named_as_its_api_names_it(text: str, api: str, name: str) -> None:
    fault = fault_in(f"loading the engine\n{text}\nlater words")
    assert fault is not None
    assert (fault.api, fault.name, fault.sticky) == (api, name, True)
    assert fault.line in " ".join(text.split())


@pytest.mark.parametrize("text", NO_FAULTS.values(), ids=list(NO_FAULTS))
def test_what_leaves_the_device_as_it_was_is_no_fault(text: str) -> None:
    assert fault_in(text) is None


def test_the_first_of_several_faults_is_the_cause() -> None:
    both = f"{FAULTS['milabench 335'][0]}\n{FAULTS['ROCm 5742'][0]}"
    fault = fault_in(both)
    assert fault is not None and fault.api == "HSA"
