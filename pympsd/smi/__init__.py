"""This package is pympsd-smi, which has the functions of nvidia-smi that MPS scripts use, for an emulated machine."""
