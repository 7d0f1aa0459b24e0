"""Virtual memory: addresses that the program reserves, and memory that it maps there."""
