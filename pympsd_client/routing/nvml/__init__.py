"""NVML, in the place of cuda.bindings.cynvml: the devices that the daemon lists."""
