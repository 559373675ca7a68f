"""The cost and the effect of a study before it starts: cells, time, memory and bytes.

Imports `execute` and what lies below it. Start reading at `plan`.
"""
