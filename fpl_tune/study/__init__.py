"""Studies: cells, seeds, store, execution, search, pruning, plan."""
