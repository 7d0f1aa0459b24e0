"""The client's C extensions; they are built if there is a C compiler at installation."""
