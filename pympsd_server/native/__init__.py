"""The native worker, in C, which runs without the interpreter; built if a compiler exists
(docs/decisions/009-native-worker.md).
"""
