"""Hydra groups of the run configuration."""
