"""How work reaches the driver, and how its end is seen."""
