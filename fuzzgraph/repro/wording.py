"""How every export begins, and how its text stays harmless in a docstring."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fuzzgraph.case import digest
from fuzzgraph.finding import Finding
from fuzzgraph.text.case_text import case_table, config_line
from fuzzgraph.text.finding_text import headline, law

if TYPE_CHECKING:
    from fuzzgraph.case import Case


CANNOT_RUN = 3
"""Exit code of an export that cannot run where it is, as one for a GPU where there is none."""


def device_check() -> list[str]:
    """Lines of a script, behind its imports, that end it in one line where there is no GPU."""
    return [
        "if not torch.cuda.is_available():",
        '    print("This needs a GPU: torch sees no CUDA or HIP device here.", file=sys.stderr)',
        f"    sys.exit({CANNOT_RUN})",
    ]


def plain(text: str) -> str:
    """Text of a case or an engine as one printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def opening(case: Case, finding: Finding) -> list[str]:
    """The finding, the law it broke, the engine's settings and the steps."""
    return [
        headline(finding),
        "",
        plain(finding.message),
        "",
        law(finding),
        "",
        f"Engine config: {config_line(case.config)}",
        f"Case {digest(case)[:12]}:",
        "",
        *(f"    {line}" for line in case_table(case, mark=finding.step)),
        "",
    ]


def docstring(lines: Iterable[str], width: int = 98) -> str:
    """A module docstring of these lines; lines of an indented table are not wrapped."""
    found: list[str] = []
    for line in lines:
        short = line.startswith("    ") or len(line) <= width
        found += [line] if short else textwrap.wrap(line, width, break_long_words=False)
    text = "\n".join(found).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""'
