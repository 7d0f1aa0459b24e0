"""Messages over Unix sockets with file descriptors beside them, as a trio program awaits them."""
