"""The program ``pympsd -d`` in a prepared process (see `prepared`): its imports, and then its start."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from prepared import serve_requests
    from prepared_children import fork_children

    import pympsd.cli.daemonize  # noqa: F401
    from pympsd.cli.command_line import main

    sys.path.pop(0)
    arguments = serve_requests()
    if os.environ.get("PYMPSD_BACKEND") != "cuda":  # what a GPU's driver meets is to be as users have it
        fork_children()
    sys.exit(main(arguments))
