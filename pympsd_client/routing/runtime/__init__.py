"""The functions of the CUDA runtime that cuda.bindings.cyruntime has, over those of the driver.

The problem: the runtime has about as many functions as the driver, and cuda.bindings links its own copy of it, which
would call the machine's driver.

The idea: most functions of the runtime are functions of the driver with another name and the same parameters
(`rows.EQUAL`), so the driver's function serves both. Each of the others has a row, like those of
`pympsd_client.signatures`, whose core is in the module of its chapter. Cores of the runtime convert its structures to
the driver's, and call the driver's functions through `routing.driver.api`.

The runtime adds to the driver:

- *Implicit contexts*: if no context is current, a call makes the primary context of this thread's device current
  (`devices.ready`). cudaSetDevice chooses the device of the thread.
- *Last errors*: cudaGetLastError returns the last failure of the thread (`functions`). Results of the driver have
  the same numbers in the runtime, which has a few more (cudaErrorInvalidMemcpyDirection).
- *Kinds of copies*: with cudaMemcpyDefault the addresses determine the direction (`copies`).
"""
