"""Search: search spaces, samplers, successive halving.

Imports `study` and what lies below it; the only room that imports Optuna. Start reading at `search`: it holds one
`CellSearch` per cell of the axes. `ask` suggests its next trial, and `halving` decides which trials go on.
"""
