"""Exports of one case with its finding: a script, a pytest file, an issue text."""
