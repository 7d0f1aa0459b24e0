"""Host memory shared with a client: staging for copies, and page-locked memory."""
