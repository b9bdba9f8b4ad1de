"""Stores: one contract, many ways for a disk to fail."""
