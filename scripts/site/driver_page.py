"""The page of the driver API: every function of pympsd_client.driver by chapter, with the text that help() shows."""

from pympsd_client import driver, signatures

INTRODUCTION = """# pympsd_client.driver: the functions

These functions have the names, parameters and results of `cuda.bindings.driver`. Each returns a tuple: a `CUresult`,
then its outputs, which are None if it fails. `pympsd_client.last_error()` returns what was wrong with the last call
that failed. Parameters are shown with C's types; `help(driver.cuMemAlloc)` shows the same in Python.
"""
CHAPTERS = ("devices", "memory", "execution", "graphs")


def markdown():
    """Return the page."""
    parts = [INTRODUCTION]
    for chapter in CHAPTERS:
        module = getattr(signatures, chapter)
        parts.append(f"## {chapter.capitalize()}")
        parts += [_function(row.name) for row in module.ROWS]
    return "\n\n".join(parts) + "\n"


def _function(name):
    text, _, call = getattr(driver, name).__doc__.rstrip().rpartition("\n\n")
    if not call.startswith(name):
        text, call = f"{text}\n\n{call}".strip(), name
    return f"### {name}\n\n```c\n{call}\n```\n\n{text}"
