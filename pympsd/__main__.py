import sys  # short, because a file run by path is compiled at every start

if not __package__:
    sys.path.insert(0, __file__.rpartition("/")[0].rpartition("/")[0])
from pympsd.cli.command_line import end, main

if __name__ == "__main__":
    end(main(sys.argv[1:]))
