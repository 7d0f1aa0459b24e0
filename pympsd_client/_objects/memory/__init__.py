"""The program's memory: device, host, managed, mapped and imported memory, and copies of its regions."""
