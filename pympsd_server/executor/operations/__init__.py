"""What each operation of the command stream does, a module for each chapter."""
