"""What the PTX instruction set fixes: types, the machine that code sees, and the faults of programs and kernels."""
