"""Device, contexts, streams, events, modules and green contexts of a real GPU."""
