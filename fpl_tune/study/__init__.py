"""A study and what it holds: cells, the store on disk, the result table, and the choice of the best cell.

Imports `simulation`, `config` and what lies below them; neither Ray nor Optuna nor MLflow. Start reading at `cells`
(what a study runs), then `store` (the folder; `schema` reads its files), `standing` (where a cell stands), `results`
(the table) and `selection` (the best cell).
"""
