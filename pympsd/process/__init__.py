"""What a process of pympsd is and shows: its build, its title, and files that it writes whole."""
