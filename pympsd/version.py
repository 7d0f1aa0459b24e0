"""The version of pympsd, and the CUDA driver API version it answers with."""

from typing import Final

VERSION: Final = "0.1.0"
"""The release, as in pyproject.toml (which reads it here)."""

CUDA_VERSION: Final = 13000
"""What cuDriverGetVersion and the version texts say: 1000 x major + 10 x minor (CUDA 13.0)."""

DRIVER_BRANCH: Final = 580
"""The driver whose recorded behaviour is followed, as server.log prints it."""
