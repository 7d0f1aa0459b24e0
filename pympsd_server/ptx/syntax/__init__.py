"""This package parses PTX text to a syntax tree."""
