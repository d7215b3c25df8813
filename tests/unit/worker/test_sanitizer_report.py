"""Reports of compute-sanitizer of several releases are read, and nothing else is."""

from __future__ import annotations

import pytest

from fuzzgraph.worker.sanitizer.report import MOST_BYTES, read_report, together

TRITON_2025 = b"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at matmul_kernel+0xec0 in matmul_triton2.py:43
=========     by thread (18,0,0) in block (0,0,0)
=========     Access to 0x74505bcccca0 is out of bounds
=========     and is 161 bytes after the nearest allocation at 0x74505bccc800 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:  [0x3534c4] in libcuda.so.1
=========         Host Frame: launch [0x5c5c] in __triton_launcher.cpython-312-x86_64-linux-gnu.so
=========         Host Frame: _PyEval_EvalFrameDefault [0x1afb7e] in python3.12
=========
========= ERROR SUMMARY: 1 error
"""
TRITON_2024 = b"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at 0xda0 in /srv/sglang/layers/moe/fused_moe.py:175:fused_moe_kernel
=========     by thread (96,0,0) in block (44,0,0)
=========     Address 0x763995f9f000 is out of bounds
=========     and is 1,241,911,296 bytes before the nearest allocation at 0x7639e0000000 of size \
5,033,164,800 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x2f26f0]
=========                in /usr/lib/x86_64-linux-gnu/libcuda.so.1
=========     Host Frame:launch_it(at::Tensor, int) [0x2800]
=========                in /srv/sgl_kernel/common_ops.abi3.so
=========
========= ERROR SUMMARY: 12 errors
========= ERROR SUMMARY: 11 errors were not printed. Use --print-limit option to adjust the number \
of printed errors
"""
MISALIGNED = b"""\
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel():0x160 in memcheck_demo.cu:6
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is misaligned
========= ERROR SUMMARY: 1 error
"""
UNWRITTEN = b"""\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
========= Host API memory access error at host access to 0x1303fd1400 of size 25600 bytes
=========     Uninitialized access at 0x1303fd4600 on access by cudaMemcopy source.
========= ERROR SUMMARY: 2 errors
"""
RACE = b"""\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at blockReduce(int *, int *)+0xf0 in race.cu:12
=========     and Read access at blockReduce(int *, int *)+0xd0 in race.cu:14 [32 hazards]
=========     and Write access at blockReduce(int *, int *)+0xf0 in race.cu:12 [4 hazards]
=========
========= Warning: Race reported between Write access at warpSum(int *)+0xf0 in race.cu:30
=========     and Read access at warpSum(int *)+0xd0 in race.cu:31 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
BARRIER = b"""\
========= Barrier error detected. Invalid arguments.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========     by thread (16,0,0) in block (0,0,0)
=========         Device Frame: broken_sync(float *, unsigned long)+0xb0 in kernel.cu:12
========= Target application returned an error
========= ERROR SUMMARY: 1 error
"""


def test_an_access_out_of_bounds_has_kernel_line_thread_address_and_allocation() -> None:
    report = read_report(TRITON_2025, "memcheck")
    [found] = report.errors
    assert report.total == 1 and not report.unread
    assert str(found.error) == (
        "matmul_kernel at matmul_triton2.py:43: out-of-bounds read of 16 bytes of global memory at "
        "0x74505bcccca0; 161 bytes after the nearest allocation, of 1,024 bytes; "
        "thread (18,0,0) in block (0,0,0); 1 such error"
    )
    assert (found.address, found.nearest) == (0x74505BCCCCA0, 0x74505BCCC800)


def test_the_form_of_older_releases_is_read_as_well() -> None:
    report = read_report(TRITON_2024, "memcheck")
    [found] = report.errors
    assert found.error.where == "fused_moe_kernel at fused_moe.py:175"
    assert found.path == "/srv/sglang/layers/moe/fused_moe.py"
    assert found.error.called_from == "launch_it(at::Tensor, int) in common_ops.abi3.so"
    assert report.total == 12


@pytest.mark.parametrize(
    ("text", "tool", "name"),
    [
        (MISALIGNED, "memcheck", "unaligned_kernel() at memcheck_demo.cu:6: misaligned write"),
        (
            UNWRITTEN,
            "initcheck",
            "vectorAdd(int *) at memset_error.cu:41: read of what nobody wrote",
        ),
        (RACE, "racecheck", "blockReduce(int *, int *) at race.cu:12: race of a write"),
        (
            BARRIER,
            "synccheck",
            "broken_sync(float *, unsigned long) at sm_30_intrinsics.hpp:110: barrier: "
            "Invalid arguments",
        ),
    ],
)
def test_each_tool_names_kernel_line_and_kind(text: bytes, tool: str, name: str) -> None:
    [found] = read_report(text, tool).errors  # type: ignore[arg-type]
    assert found.error.name == name


def test_a_race_names_what_it_meets_and_counts_its_hazards() -> None:
    report = read_report(RACE, "racecheck")
    [found] = report.errors
    assert found.error.meets == ("a read at race.cu:14", "a write at race.cu:12")
    assert found.error.count == 36
    assert (report.total, report.warnings) == (1, 1)


def test_what_is_no_error_of_a_kernel_is_kept_apart() -> None:
    assert [line.partition(" at ")[0] for line in read_report(UNWRITTEN, "initcheck").others] == [
        "Host API memory access error"
    ]


def test_a_healthy_run_has_no_errors_and_a_summary() -> None:
    report = read_report(
        b"========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "memcheck"
    )
    assert (report.errors, report.total, report.unread) == ([], 0, "")


def test_a_report_without_its_summary_says_nothing() -> None:
    assert read_report(TRITON_2025.rpartition(b"========= ERROR")[0], "memcheck").total is None


def test_errors_that_are_counted_and_not_shown_are_not_passed_over() -> None:
    assert read_report(b"========= ERROR SUMMARY: 3 errors\n", "memcheck").unread == "3 errors"


def test_lines_that_are_not_the_tools_are_passed_over() -> None:
    noise = b"Invalid __global__ read of size 4 bytes\n    at kernel+0x10 in a.py:1\n"
    assert read_report(noise + b"========= ERROR SUMMARY: 0 errors\n", "memcheck").errors == []


@pytest.mark.parametrize(
    "text",
    [
        b"========= Invalid __global__ read of size " + b"9" * 5000 + b" bytes\n",
        b"=========     at nothing+0x1 in a.py:1\n",
        b"========= Invalid __global__ read of size 4 bytes\n=========     at "
        + b"a" * (1 << 20)
        + b"+0x1\n",
        b"\xff\xfe\x00=========\n========= \x1b[31m\n",
        b"========= " * 100_000,
    ],
    ids=["a huge number", "a line without its head", "a long line", "no text", "marks alone"],
)
def test_a_report_that_somebody_made_up_does_no_harm(text: bytes) -> None:
    for one in read_report(text, "memcheck").errors:
        assert len(str(one.error)) < 2000
        assert str(one.error).isprintable()


def test_a_report_is_read_up_to_its_bound() -> None:
    error = MISALIGNED.rpartition(b"========= ERROR")[0]
    report = read_report(error + b"x\n" * (MOST_BYTES // 2) + error, "memcheck")
    assert len(report.errors) == 1


def test_errors_of_one_name_are_one_whatever_their_address() -> None:
    other = MISALIGNED.replace(b"0x7f6510c00001", b"0x1000000000f1")
    found = [
        one.error for text in (MISALIGNED, other) for one in read_report(text, "memcheck").errors
    ]
    [error] = together(found)
    assert (error.count, error.address) == (2, "0x7f6510c00001")
