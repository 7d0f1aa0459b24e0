"""Device, contexts, streams and modules of the emulated GPU."""
