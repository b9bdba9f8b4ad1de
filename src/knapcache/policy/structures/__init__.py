"""Data structures that policies share, as compiled kernels over the policy's record array."""
