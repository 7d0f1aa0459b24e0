"""The operations of the command stream, a module for each chapter."""
