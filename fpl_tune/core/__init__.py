"""Functions that every room may use; they know nothing of methods, data or studies."""
