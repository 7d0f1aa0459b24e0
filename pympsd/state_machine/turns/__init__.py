"""The queue of waiting users, and which of them is next."""
