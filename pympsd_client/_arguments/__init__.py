"""Arguments as cuda.bindings takes them: numbers, host pointers, structures, kernel parameters."""
