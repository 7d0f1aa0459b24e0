"""Types shared by all three programs: identities, statuses, limits, answers, settings, file names. Pure."""
