"""Operations: functions over a connection, written once for both APIs.

They await nothing but their `Connection`, so the same function serves the blocking and the asynchronous saver.
"""
