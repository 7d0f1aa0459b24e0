"""Words all three programs share: identities, statuses, limits, settings, file names. Pure."""
