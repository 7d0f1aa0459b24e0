"""This package encodes and decodes the bytes that programs exchange: frames, messages, records of the command stream.

It does no I/O.
"""
