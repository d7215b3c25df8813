"""What the oracles hold an engine to, as pure functions: tensors and plain values in, text out.

Each rule is written once. The oracles call it, and an exported script contains its source
(`repro.embedding`), so that a script can neither accuse an engine that the oracles acquit nor the
other way round. Therefore a rule imports torch and the standard library only, and other rules.
"""
