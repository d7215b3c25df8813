"""What compiled attention kernels compute, in plain torch: one module for each family.

A model stands where an engine calls a kernel that this machine cannot run. It takes the kernel's
own arguments, does what the kernel's documentation defines, and judges its caller by what that
asks for:

- the *call* checks what the real host code checks (`checks.Call`): dtypes, shapes, strides,
  scalars. It raises `KernelRefused`, which is a finding about the engine. It allocates the outputs,
  which hold poison until they are written.
- the *launch* (`launch.launch`) is recorded in a graph and replayed with the arguments as they were
  frozen, as a kernel is. It reads and writes memory by `KernelMemory`, which follows a wrong index
  as a device would and records it.

A model reads exactly what its arguments name, clamps nothing and tidies nothing; what the kernel
leaves undefined keeps its poison. No engine is known here.

A script of a finding contains the bodies that it launches, with what they call. So no two functions
of this package have the same name, nor that of a function of `rules`, and a body needs torch and
NumPy alone.
"""
