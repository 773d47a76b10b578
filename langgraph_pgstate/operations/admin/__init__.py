"""The schema, its maintenance, its checks and its sizes."""
