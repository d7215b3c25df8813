"""The source text of one module: places by line and column, replaced without moving other lines."""

from __future__ import annotations

import ast
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a source that is replaced."""

    start: int
    """Byte offset, as `end`."""
    end: int
    text: str


class Source:
    """One module's text and tree.

    Columns of `ast` count bytes of UTF-8, so the text is kept as bytes.
    """

    def __init__(self, path: str, text: bytes) -> None:
        self.path = path
        self.bytes = text
        self.tree = ast.parse(text, path)
        self._begins = [0]
        for line in text.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    @classmethod
    def read(cls, path: str) -> Source:
        return cls(path, Path(path).read_bytes())

    @cached_property
    def lines(self) -> list[str]:
        return self.bytes.decode().splitlines(keepends=True)

    def offset(self, line: int, column: int) -> int:
        return self._begins[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Byte offsets of a node's text; parentheses around it are not part of it."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.bytes[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, str]:
        """The text between two neighbours, and where it begins."""
        start, end = self.span(left)[1], self.span(right)[0]
        return start, self.bytes[start:end].decode()

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        return Edit(*self.span(node), text)

    def edited(self, edit: Edit) -> bytes:
        """The whole text with one part replaced, and every later line where it was."""
        return self.bytes[: edit.start] + self._replacement(edit) + self.bytes[edit.end :]

    def changed_lines(self, edit: Edit) -> tuple[int, str, str]:
        """The number of the first changed line, then the changed lines before and after."""
        first = bisect_right(self._begins, edit.start)
        last = bisect_right(self._begins, max(edit.start, edit.end - 1))
        begin, end = self._begins[first - 1], self._begins[last]
        after = self.bytes[begin : edit.start] + self._replacement(edit)
        after += self.bytes[edit.end : end]
        return first, self.bytes[begin:end].decode(), after.decode()

    def _replacement(self, edit: Edit) -> bytes:
        """The new text, and as many lines as the old one had."""
        removed = self.bytes.count(b"\n", edit.start, edit.end)
        # One line in place of several is followed by empty lines, or, where more of the statement
        # follows on the last line, by continued ones.
        line_end = self.bytes.find(b"\n", edit.end)
        alone = self.bytes[edit.end : line_end if line_end >= 0 else None].strip() == b""
        filler = (b"\n" if alone else b" \\\n") * (removed - edit.text.count("\n"))
        return edit.text.encode() + filler
