"""Search: search spaces, samplers, successive halving.

Imports `study` and the packages below it; only this package imports Optuna. Start reading at `search`: it has one
`CellSearch` per cell of the axes. `ask` suggests its next trial, and `halving` decides which trials continue.
"""
