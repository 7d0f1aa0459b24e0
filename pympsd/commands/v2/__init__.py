"""The commands of driver 580 (v2). Importing this registers them."""

from pympsd.commands.v2 import clients, devices, servers, shutdown

__all__ = ["clients", "devices", "servers", "shutdown"]
