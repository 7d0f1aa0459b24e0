"""The configuration file of protocol 3: text to a checked plan, plan against state to changes. Sans-I/O.

The problem: an administrator keeps servers, namespaces, limits and rules in one TOML file, under version control, and
applies it again and again. Applying it must change what differs and nothing else, because clients are running; and a
mistake in the file must not leave the daemon between two configurations.

The idea: a file states the wanted configuration, and applying it has three steps, each a function of values::

    text --reader.read_plan--> Plan --changes.changes (with the daemon's State)--> changes --config apply--> daemon
                 |
                 +--> every error, with the line and the key (`positions`)

- `reader` reads the whole text with `tables`, `rules` and `cgroups`, and reports all errors together. A `Plan` exists
  only if there are none, so no later step meets a malformed value.
- `changes` compares plan and state. The result is a list of changes as values, which can be printed without being
  carried out (``config apply --check``).
- `show` is the inverse of `reader`: it writes the daemon's state as a file. Reading that file again gives a plan
  without changes; the tests hold this.
- `in_force` identifies the configuration that a daemon has: by a hash, and by the later changes of commands.

What must never happen: a change before the file was read completely, and a change that the file does not state. A key
that is absent from the file is never compared.

No module here opens the file or reads the time. The commands of pympsd/commands/v3/config.py get the text from the
operator's tool and carry out the changes.
"""
