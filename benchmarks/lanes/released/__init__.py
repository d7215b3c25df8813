"""How much of the Triton kernels that engines ship runs over lanes, counted on released wheels.

* `row`: what a row of the tables is, and small tensors for it
* `sglang_*`, `vllm_*`: the tables, one call of an engine's own wrapper, or of its kernel, in a row
* `device`: an engine's modules on a machine without a GPU, claiming a compute capability
* `launches`: runs every launch of a row in Triton's own interpreter and over lanes
* `processes`: each row in a process of its own
* `page`: the section of `reports/lanes.md`
"""
