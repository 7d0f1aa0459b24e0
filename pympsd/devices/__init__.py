"""Which GPUs exist: profiles, emulated machine descriptions, visible-device filtering. Pure."""
