"""A running MPS server: its link to the daemon, its clients' sessions and its executors."""
