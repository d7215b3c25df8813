"""What the exports of a finding are called, beside its case."""

from __future__ import annotations

import re

from fuzzgraph.run.events import ExportKind


def file_names(finding: str) -> dict[ExportKind, str]:
    """Kind of export -> name of its file.

    A test file bears the id of its finding: pytest imports it as a module, and refuses two modules
    of one name.

    Args:
        finding: its id, as `finding_id` makes it.

    >>> file_names("footprint-kv.indices-decode-f4df28")["pytest"]
    'test_repro_footprint_kv_indices_decode_f4df28.py'
    """
    module = re.sub(r"\W+", "_", f"test_repro_{finding}")
    return {"script": "repro.py", "pytest": f"{module}.py", "issue": "issue.md"}
