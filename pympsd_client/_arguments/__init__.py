"""Conversion of arguments and outputs: numbers, host pointers, structures and arrays, as cuda.bindings passes them.

A core function gets plain values. The same core serves two kinds of callers, and these modules hide which:

- Python callers pass ints, enum members, handle objects, bytes, lists, and structures of cuda.bindings.
- Callers in C (`pympsd_client.routing`) pass addresses. An address arrives as a
  `values.InMemory`, an int of its own type, so that it is not mistaken for a value.

`values` has what both need: numbers with C's ranges, the address of a structure, the addresses of an array's
elements. Each module of structures (``*_structs``, `resources`, `launch_attributes`, `shared_handles`) turns one
family of C structures into frozen classes and back. Layouts are those of 64-bit Linux, stated with `struct` or
`ctypes`.

Errors follow cuda.bindings: a value of a wrong type raises TypeError, a number that does not fit its C type raises
OverflowError, and a list that is too short raises what cuda.bindings raises. A value that C would refuse raises a
CudaError with INVALID_VALUE, whose reason names the argument, the value, and what is allowed. NULL is None or 0, and
is never dereferenced.
"""
