"""The native worker: C without Python, built if there is a compiler (docs/decisions/009-native-worker.md)."""
