"""Take the link of one's own server, send the daemon the frames that come as lines of hex, and keep the link open.

Run as the server's user: hostile_server.py SERVER-PID. Each line is answered with "sent".
"""

import ctypes
import os
import socket
import sys

SYS_PIDFD_GETFD = 438


def link_of(pid: int) -> socket.socket:
    """Return the link of a server to its daemon, which is its only socket of packets."""
    pidfd = os.pidfd_open(pid)
    for name in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
            fd = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, pidfd, int(name), 0)
            if fd < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            sock = socket.socket(fileno=fd)
            if sock.type == socket.SOCK_SEQPACKET:
                return sock
            sock.close()
    raise LookupError("no link")


if __name__ == "__main__":
    link = link_of(int(sys.argv[1]))
    link.setblocking(True)
    print("has the link", flush=True)
    for line in sys.stdin:
        try:
            for frame in line.split():
                link.send(bytes.fromhex(frame))
        except OSError as error:
            print(error, flush=True)
        print("sent", flush=True)
