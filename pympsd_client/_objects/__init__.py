"""Contexts, streams, events, modules and memory of this process.

The problem: CUDA programs hold handles and addresses, and expect most calls to return before the device has done the
work. The objects themselves are in an executor, another process.

The idea: each handle stands for a small object here, with the data to check a call without the executor. A call
becomes one record of the command stream. Only a call whose result depends on the executor waits for an answer.

- The client allocates handles, so a stream or an event is created by one record without an answer, and the next call
  may use the handle.
- A `Context` belongs to one device and one command stream. Its records are executed in the order of the calls, so an
  object that is created in one record exists for the next.
- A fault of submitted work becomes the context's sticky error, and from then on every call in the context fails with
  it (`Context.usable`).
- Each kind of object has a table (`handle_table`). Destroying a context removes all of its objects from the tables,
  so a handle of a destroyed context is refused here and never sent.
- After a fork the child has the parent's objects, but no connection: `process` makes every call there return an
  error, and closes the child's copies of the descriptors.

`process` has the connection; `context`, `stream`, `event`, `green_context`, `copies` and `host_function` are one
chapter of the driver API each. The packages are `memory` (allocations of all kinds), `pools` (stream-ordered
allocation), `code` (modules, libraries, linking, launches) and `arrays` (arrays, textures, surfaces).

The modules here take and return plain values and raise CudaError. `_api` and `_arguments` convert the arguments of C
and Python callers before they call this package.
"""
