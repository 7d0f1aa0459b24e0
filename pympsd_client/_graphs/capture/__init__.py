"""Stream capture."""
