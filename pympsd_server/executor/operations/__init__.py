"""The operations of the command stream, with a module for each chapter."""
