"""Benchmarks: run by hand, each prints a table. Never part of the tests."""
