"""What a study is and holds: cells, seeds, the store on disk, its results as tables, and the choice of the best cell.

Imports `trial`, `config` and what lies below them; neither Ray nor Optuna nor MLflow. Start reading at `cells`, then
`store`.
"""
