"""Estimates for each query: how often it is requested, what a miss costs, and the confidence in both."""
