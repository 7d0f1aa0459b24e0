"""Types that all three programs share: identities, statuses, limits, answers, settings, file names. No I/O."""
