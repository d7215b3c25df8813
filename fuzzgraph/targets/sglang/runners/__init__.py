"""The engine's graph runners, each in a file named as the engine's module or class."""
