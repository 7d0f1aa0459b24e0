"""The worker outside the interpreter: C that knows no Python, built where there is a compiler (docs/decisions)."""
