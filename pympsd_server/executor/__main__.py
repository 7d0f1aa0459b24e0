"""Start an executor: ``python3 -I .../pympsd_server/executor/__main__.py --link-fd N``."""

import os
import signal
import sys
from importlib.util import find_spec
from os.path import abspath, dirname

if __name__ == "__main__":
    # NumPy reads this at import; a single compute thread does not need a thread pool.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a client's terminal must not end the executor
    if find_spec("pympsd_server") is None:  # the file was run by path, from a tree that is not installed
        sys.path.insert(0, dirname(dirname(dirname(abspath(__file__)))))
    from pympsd_server.executor.main import main

    main(sys.argv[1:])
