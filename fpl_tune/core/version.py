"""The version of the package, which may have no metadata: it is not installed on the nodes of a cluster."""

__version__ = "0.1.0"
