"""Makes text of cases, engines and logs safe to show: what it holds is visible and has no effect.

Such text is untrusted. Each function here is for one kind of place in which text is shown.
"""

from __future__ import annotations

import re

WEB_LINK = r"https?://[^\s<>\"'`]+"
"""What may become a link: an http or https address, and so no `javascript:` or `file:`."""

# Control characters except tab and line feed (terminals obey them), characters that turn the
# direction of writing (they make text read as another), characters without width, and surrogates,
# which no file can hold.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_BREAKS = re.compile(r"\s*[\n\r\v\f\x85\u2028\u2029]\s*")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#&~$])")


def visible(text: str) -> str:
    r"""The text with invisible characters, and those that a terminal obeys, written as escapes.

    >>> print(visible("a\x1b[31mb\u202ec"))
    a\x1b[31mb\u202ec
    """
    return _UNSEEN.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    r"""The text of `visible` on one line; its indentation stays.

    >>> one_line("  a\n  b")
    '  a b'
    """
    return visible(_BREAKS.sub(" ", text))


def markdown_text(text: str) -> str:
    """Text that Markdown shows unchanged, on one line, also in a table."""
    return _MARKDOWN.sub(r"\\\1", " ".join(one_line(text).split()))


def code_span(text: str) -> str:
    """A span of code, whatever the text holds.

    >>> code_span("a`b")
    '``a`b``'
    """
    text = one_line(text)
    # A fence longer than any run of backticks within, and a space where they would touch it.
    fence = "`" * (_longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def code_cell(text: str) -> str:
    """A span of code within a table; '' for no text."""
    # In a table a bar ends the cell, even inside a span of code.
    return code_span(text).replace("|", "\\|") if text else ""


def code_block(text: str) -> str:
    """A block of plain text, its fence longer than any run of backticks within."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}text\n{visible(text)}\n{fence}"


def file_name(text: str) -> str:
    """The text as the name of a file or folder; another text may have the same.

    >>> file_name("my.engine:Target")
    'my.engine-Target'
    """
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)[:80]


def web_link(address: str) -> str:
    """The address if a report may link it; '' otherwise.

    >>> web_link("https://example.org/1"), web_link("javascript:alert(1)")
    ('https://example.org/1', '')
    """
    return address if re.fullmatch(WEB_LINK, address) else ""


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
