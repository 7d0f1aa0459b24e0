"""Tests of the client library: against a fake executor, and against real ones of its own."""
