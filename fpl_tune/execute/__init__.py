"""Running a study: the scheduler of its jobs, executors (`inline` and `ray`), checkpoints, the ETA.

Imports `search`, `study` and what lies below them; `execute.ray` is the only place that imports Ray. Start reading at
`runner`, then `scheduler` and `job`.
"""
