"""Running a study: the driver, executors (`inline` and `ray`), checkpoints, the time left.

Imports `search`, `study` and what lies below them; `execute.ray` is the only place that imports Ray. Start reading at
`runner`, then `driver`, `decide` and `job`.
"""
