"""Hyper-parameter search and ablation studies for personalised federated prompt learning."""

__version__ = "0.1.0"
