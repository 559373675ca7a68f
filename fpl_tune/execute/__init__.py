"""Running a study: the driver, executors (`inline` and `ray`), checkpoints, the time left.

Imports `search`, `study` and the packages below them; only `execute.ray` imports Ray. Start reading at `runner`, then
`driver`, `decide` and `job`.
"""
