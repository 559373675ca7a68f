# pyright: reportUnusedImport=false
"""Benchmarks: the cost of text encoding and of a round, and that of the plain path in the same run.

The plain path is a loop over clients with an unmodified CLIP: open_clip's own modules encode sentences of the full
context length, images are encoded at every use, and nothing is cached. A ratio compares two times of the same run; on
a busy machine both are noisy.
"""

from fpl_tune.bench.operations import bench_operations
from fpl_tune.bench.rounds import bench_round
from fpl_tune.bench.texts import bench_text
