"""The Python process: its interpreter, its signals, whether torch is there, what a driver said."""
