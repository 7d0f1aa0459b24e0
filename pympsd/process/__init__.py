"""Code that every process of pympsd uses: its version and title, the files it writes, the processes it starts."""
