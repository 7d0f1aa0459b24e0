"""control.log and server.log: the catalogues of their lines, the line format, the files, the structlog setup."""
