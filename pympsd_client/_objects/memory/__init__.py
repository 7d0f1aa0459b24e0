"""Memory that the program has: of devices, of the host, managed, mapped, imported; copies of its regions."""
