"""One log line: ``[YYYY-MM-DD HH:MM:SS.mmm WHO PID] text`` in local time, the PID right-aligned in 5."""

from __future__ import annotations

from datetime import datetime


def line(when: float, who: str, pid: int, text: str) -> bytes:
    """Return a whole line; ``when`` in seconds since the epoch. Undecodable bytes of ``text`` survive."""
    moment = datetime.fromtimestamp(when)
    stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
    return f"[{stamp} {who} {pid:>5}] {text}\n".encode("utf-8", "surrogateescape")


def sanitised(data: bytes, limit: int = 1024) -> str:
    """Return foreign bytes as one harmless piece of a line: no control characters, at most ``limit`` characters."""
    text = data.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text[:limit]).strip()
