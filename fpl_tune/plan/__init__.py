"""What running a study would cost and change: cells, time, memory and bytes, before anything starts.

Imports `execute` and what lies below it. Start reading at `plan`.
"""
