"""Experiments: the figures and tables of the paper and its open questions, one per file.

`knapcache experiment NAME` runs them. Numbers and figures of full runs are committed in experiments/results/.
"""
