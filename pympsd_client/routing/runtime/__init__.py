"""The functions of the CUDA runtime that cuda.bindings.cyruntime has, over those of the driver.

The problem: the runtime has about as many functions as the driver, and cuda.bindings links its own copy of it, which
would call the driver behind pympsd's back.

The idea: most functions of the runtime are functions of the driver by another name with the same parameters
(`rows.EQUAL`): the driver's entry answers. Each other one is a row, like those of `pympsd_client.signatures`, whose
core is in the module of its chapter. Cores of the runtime convert its structures to the driver's, and call the
driver's functions through `routing.driver.api`.

The runtime adds to the driver:

- *Implicit contexts*: a call makes the primary context of this thread's device current, unless a context is
  (`devices.ready`). cudaSetDevice chooses the device of the thread.
- *Last errors*: cudaGetLastError returns the last failure of the thread (`functions`). Results of the driver have
  the same numbers in the runtime; a few are the runtime's own (cudaErrorInvalidMemcpyDirection).
- *Kinds of copies*: cudaMemcpyDefault looks at the addresses (`copies`).
"""
