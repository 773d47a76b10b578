"""How values become bytes and bytes become values; knows nothing of databases."""
