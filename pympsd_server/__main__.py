import sys  # keep this file short: a file run by path is compiled at every start

try:
    import pympsd_server  # noqa: F401
except ImportError:
    sys.path.insert(0, __file__.rpartition("/")[0].rpartition("/")[0])
from pympsd_server.options import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
