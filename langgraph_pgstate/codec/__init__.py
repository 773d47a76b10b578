"""Encoding of values as bytes, and decoding; uses no database."""
