"""The memory of client processes on the emulated GPU, and copies within it."""
