"""pympsd-smi: the functions of nvidia-smi that MPS scripts use, on an emulated machine."""
