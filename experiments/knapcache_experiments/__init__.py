"""The paper's figure and tables, and what it leaves open: one experiment a file, run by `knapcache experiment
NAME`.

Results of full runs are committed beside this package, in experiments/results/, as numbers and pictures.
"""
