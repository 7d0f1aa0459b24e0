"""Daemons from Python: start one or attach to a running one, query it and give it commands; docs/python.md.

>>> from pympsd.control import Daemon
>>> with Daemon(machine="2xH200") as daemon:
...     [device.name for device in daemon.devices()]
['NVIDIA H200', 'NVIDIA H200']
"""

from pympsd.control.connection import CannotAsk, Control, Silent
from pympsd.control.daemon import CannotStart, Daemon, RunningDaemon
from pympsd.control.records import Client, Context, Device, Drain, Drained, DrainedClient, Server, Waiting

__all__ = [
    "CannotAsk",
    "CannotStart",
    "Client",
    "Context",
    "Control",
    "Daemon",
    "Device",
    "Drain",
    "Drained",
    "DrainedClient",
    "RunningDaemon",
    "Server",
    "Silent",
    "Waiting",
]
