"""The queue of waiting users, and the choice of the next one."""
