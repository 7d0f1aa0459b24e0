"""The GPUs of a machine: profiles, descriptions of emulated machines, and the devices that are visible."""
