"""What simulations are tested on."""

CORNER = (
    "data.domains=[photo]",
    "data.train_per_class=10",
    "data.test_per_class=4",
    "data.shots=4",
    "partition.name=disjoint",
    "protocol.epochs=1",
)
"""A corner of the embedded world, which is simulated in a moment."""
