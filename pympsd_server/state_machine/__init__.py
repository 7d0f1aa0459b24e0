"""The decisions of a server about its clients, contexts, phases and limits. Sans-I/O."""
