"""What is done: plain functions over a connection, written once for both colours.

They await nothing but their `Port`, so the same function serves the blocking and the asynchronous saver.
"""
