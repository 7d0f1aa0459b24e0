"""Parts of a device's resources, and contexts that have a part."""
