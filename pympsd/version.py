"""The version of pympsd, and of the CUDA driver API it answers with. Imports nothing, for the quick command line."""

VERSION = "0.1.0"
"""The release, as in pyproject.toml (which reads it here)."""

CUDA_VERSION = 13000
"""What cuDriverGetVersion and the version texts say: 1000 x major + 10 x minor (CUDA 13.0)."""

DRIVER_BRANCH = 580
"""The driver whose recorded behaviour is followed, as server.log prints it."""
