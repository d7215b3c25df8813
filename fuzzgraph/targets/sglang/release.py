"""The sglang of this process: one unpacked release, or an installed one."""

from __future__ import annotations

import re

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.offline.package import EnginePackage
from fuzzgraph.targets.sglang.stubs.absent_modules import ABSENT, CONTENTS, LEFT_OUT

SGLANG = EnginePackage(
    "sglang",
    absent=ABSENT,
    contents=CONTENTS,
    left_out=LEFT_OUT,
    bare=True,
    settings="SGLANG_",
    environment={"TQDM_DISABLE": "1"},  # its capture loop draws a bar
    example="0.5.13",
    companions="run 'make sglang', or pip install it",
)

engine_module = SGLANG.module
has_module = SGLANG.has_module
release = SGLANG.release
package_root = SGLANG.root


def is_before(first: tuple[int, int, int]) -> bool:
    """Whether the release is older; sources without a number of a release are not."""
    numbers = tuple(map(int, re.findall(r"\d+", release())))[:3]
    return any(numbers) and numbers < first


def demand_release(first: tuple[int, int, int], lack: str, target: str) -> None:
    """Refuse a release before `first`.

    Args:
        lack: what the ones before lack or do otherwise; the message goes on from "sglang 0.5.9".
        target: its name.

    Raises:
        AdapterUnavailable: the release is older.
    """
    if is_before(first):
        raise AdapterUnavailable(
            f"sglang {release()} {lack} as target {target!r} drives them. "
            f"Name a release from {'.'.join(map(str, first))} on."
        )
