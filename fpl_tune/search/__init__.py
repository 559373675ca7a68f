"""Which cell is tried next and which goes on: search spaces, samplers, pruning, racing of seeds, replay.

Imports `study` and what lies below it; the only room that imports Optuna. Start reading at `search`.
"""
