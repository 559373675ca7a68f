"""Search: search spaces, samplers, pruning.

Imports `study` and what lies below it; the only room that imports Optuna. Start reading at `search`: it holds one
`suggest.CellSearch` per cell of the axes, whose trials are in `record`; `pruning` decides after each round.
"""
