"""The version, for every room: on the nodes of a cluster the package is not installed, and so has no metadata."""

__version__ = "0.1.0"
