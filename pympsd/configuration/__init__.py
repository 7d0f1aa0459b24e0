"""This package reads the configuration file of protocol 3 into a checked plan, and computes the changes of the state.
It does no I/O.

The problem: an administrator keeps servers, namespaces, limits and rules in one TOML file, under version control, and
applies it again and again. Applying it must change only what differs, because clients are running. A mistake in the
file must not leave the daemon between two configurations.

The idea: a file states the desired configuration, and applying it has three steps, each a function of values::

    text --reader.read_plan--> Plan --changes.changes (with the daemon's State)--> changes --config apply--> daemon
                 |
                 +--> every error, with the line and the key (`positions`)

- `reader` reads the whole text with `tables`, `rules` and `cgroups`, and reports all errors together. A `Plan` is
  made only of a text without errors, so later steps never meet a malformed value.
- `changes` compares plan and state. The result is a list of changes as values, which can be printed without being
  carried out (``config apply --check``).
- `show` is the inverse of `reader`: it writes the daemon's state as a file. Reading that file again gives a plan
  without changes; the tests hold this.
- `in_force` identifies a daemon's configuration by a hash, and finds what commands have changed since.

What must never happen: a change before the file was read completely, and a change that the file does not state. Keys
that are absent from the file are not compared.

Modules here do not open the file or read the time. The commands of pympsd/commands/v3/config.py get the text from the
operator's tool and carry out the changes.
"""
