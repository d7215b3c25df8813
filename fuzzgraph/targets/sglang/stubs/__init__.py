"""What stands in for what surrounds the engine's code on one process without a server and a GPU."""
