"""Unmodified CUDA Python programs: the function pointers of cuda.bindings replaced by C functions over this client.

``pympsd-run`` sets a variable; at the start of every Python below it a .pth file then installs the import hook in
`pympsd_client.routing.hook`, which waits for the modules of cuda.bindings that hold the function pointers.
"""
