"""Asynchronous copies and the barriers in shared memory that wait for them (PTX ISA: cp.async, mbarrier)."""
