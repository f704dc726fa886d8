"""The course's kernels beside their peers: `make bench`, or `python -m benchmarks --help`."""
