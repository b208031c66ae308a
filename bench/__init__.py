"""Benchmarks. They print ratios of measurements that were made in the same run on the same machine.
They are not tests."""
