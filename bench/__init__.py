"""Benchmarks: `make bench` measures here and writes docs/benchmarks.md. Not part of the package."""
