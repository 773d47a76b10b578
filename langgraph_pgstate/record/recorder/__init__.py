"""The recorder, which captures runs and writes them."""
