"""The versions of pympsd and of the CUDA driver API it reports. Imports nothing, so that commands start fast."""

VERSION = "0.1.0"
"""The release, as in pyproject.toml (which reads it here)."""

CUDA_VERSION = 13000
"""The version that the version texts report: 1000 x major + 10 x minor (CUDA 13.0)."""

API_VERSION = 13010
"""The version of the driver API that programs have, as cuDriverGetVersion reports it (CUDA 13.1)."""

DRIVER_BRANCH = 580
"""The driver whose recorded behaviour pympsd follows, as server.log prints it."""

DRIVER_VERSION = f"{DRIVER_BRANCH}.0"
"""Its version in dotted form, at whose dot scripts split it."""
