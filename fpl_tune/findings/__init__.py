"""What follows from a study's results: the choice of the best cell, comparisons, claims, tables of methods by settings.

Reads a snapshot of the study (`study.table`) and computes each figure once; `search` and `execute` choose by it, and
`report` turns it into pages. Start reading at `choice` (the best cell), then `findings` (all that a page says), and
`comparisons` (differences from a reference).
"""
