"""What stands in for parts of a vLLM server on a machine without a GPU."""
