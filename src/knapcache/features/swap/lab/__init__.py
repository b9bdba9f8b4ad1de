"""Swap in the lab: what a cheaper model would have saved on a log of labelled requests."""
