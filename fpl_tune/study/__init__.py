"""Studies: cells, the store on disk, the result table, and the choice of the best cell.

Imports `simulation`, `config` and the packages below them; neither Ray nor Optuna nor MLflow. Start reading at `cells`
(what a study runs), then `store` (the folder; `schema` reads its files), `standing` (the state of a cell), `results`
(the result of a seed), `table` (all results) and `selection` (the best cell).
"""
