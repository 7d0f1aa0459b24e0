"""What a daemon leaves to the next on its pipe directory, and how that one takes it over."""
