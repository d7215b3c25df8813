"""A GPU engine's host code without a GPU: what targets of several engines share.

Nothing here knows an engine: the list of absent modules, the name of the package and the namespace
of its operators are arguments. Targets of other packages may import from here:
docs/writing-a-target.md shows how. Nothing here imports an engine, or one of FuzzGraph's targets.

* `package`: one release of an engine, imported without its server and its kernels
* `import_stubs`, `cuda_on_cpu`, `torch_library`, `lazy_compile`: what its imports and its host code
  ask of a machine with a GPU
* `cuda_graph`: in place of `torch.cuda.CUDAGraph` and `torch.cuda.graph`
* `patching`, `stub`: replaced names, and objects that are not there
* `target`, `session`, `fields`, `used`: what every target on a released engine has to answer
* `flashinfer_wrappers`: models of FlashInfer's wrappers, where it is not installed
"""
