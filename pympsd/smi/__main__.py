"""``python3 -m pympsd.smi``, or this file run by path: short, because it is then compiled at every start."""

import sys

if not __package__:
    sys.path.insert(0, __file__.rpartition("/smi/")[0].rpartition("/")[0])
from pympsd.smi.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
