"""This package defines the PTX instruction set: its types, the machine that code sees, and the faults."""
