"""The commands of driver 580 (v2). Importing this registers them."""

from pympsd.commands.v2 import (
    clients,
    devices,
    memory_limits,
    percentages,
    priorities,
    servers,
    shutdown,
    termination,
)

__all__ = [
    "clients",
    "devices",
    "memory_limits",
    "percentages",
    "priorities",
    "servers",
    "shutdown",
    "termination",
]
