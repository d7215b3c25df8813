"""The sglang of this process: one unpacked release, or an installed one."""

from __future__ import annotations

from fuzzgraph.targets.offline.package import EnginePackage
from fuzzgraph.targets.sglang.stubs.absent_modules import ABSENT, CONTENTS

SGLANG = EnginePackage(
    "sglang",
    absent=ABSENT,
    contents=CONTENTS,
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
