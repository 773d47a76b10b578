"""Encoding of values as bytes, and decoding, without a database."""
