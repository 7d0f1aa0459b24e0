"""The client's C extensions, which are built if a C compiler is present at installation."""
