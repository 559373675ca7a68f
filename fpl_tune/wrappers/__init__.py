"""Methods that wrap another method, `inner`, and change one aspect of it. A wrapper's name is that of its file."""
