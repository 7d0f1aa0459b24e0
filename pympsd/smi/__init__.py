"""pympsd-smi: the uses of nvidia-smi that MPS scripts make, on an emulated machine."""
