"""Images as files hold them: fatbins, and the two ways in which their contents are compressed."""
