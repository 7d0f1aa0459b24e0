"""A fake MPS server and a fake libcuda that speak the recorded wire of the vendor's driver 580.

They share no code with the product, so they catch errors in its codec. What runs as a process of its own uses
the standard library alone: it is started without site-packages, and needs CUDA_MPS_PIPE_DIRECTORY alone.
"""
