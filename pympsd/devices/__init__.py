"""This package describes the GPUs of a machine: profiles, descriptions of emulated machines, and which devices are
visible.
"""
