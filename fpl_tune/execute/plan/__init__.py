"""Planning a study before it starts: cells, time, memory and bytes.

Imports `execute` and the packages below it. Start reading at `plan`.
"""
