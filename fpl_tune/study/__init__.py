"""The facts of a study: its cells, the files on disk, and the table of results.

Imports `simulation`, `config` and the packages below them; neither Ray nor Optuna nor MLflow. Start reading at `cells`
(what a study runs), then `store` (the folder; `schema` reads its files), `standing` (the state of a cell), `results`
(the result of a seed) and `table` (all results). What follows from the results is in `findings`.
"""
