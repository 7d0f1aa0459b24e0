"""The worker outside the interpreter: C that knows no Python, built where there is a compiler.

Why it is made so: docs/decisions/009-native-worker.md.
"""
