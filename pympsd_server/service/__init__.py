"""One running MPS server: its link to the daemon, its clients' sessions, its executors."""
