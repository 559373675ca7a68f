"""Methods made from methods: each forwards to `inner` and changes one thing. A wrapper is known by its file's name."""
