"""The GPUs of a machine: profiles, emulated machine descriptions, visible-device filtering. Pure."""
