"""Every error knapcache raises on purpose.

KnapcacheError
├── InvalidInput (also ValueError)    an argument, a file or an option that cannot be used: says what is allowed
├── MissingExtra (also ImportError)   a package that is not installed: says which extra brings it
├── ClusterFailed                     a cluster that cannot be reached, runs other code, or lost its workers: says which
└── CorruptState                      check() found that totals and reality differ: a bug, never the user's fault
"""


class KnapcacheError(Exception):
    """Root of the tree: catch this to catch everything knapcache raises on purpose."""


class InvalidInput(KnapcacheError, ValueError):  # noqa: N818 - reads as what it is, as in the drawing above
    """An argument, a file or an option cannot be used."""


class MissingExtra(KnapcacheError, ImportError):  # noqa: N818
    """An optional package is not installed."""


class ClusterFailed(KnapcacheError):  # noqa: N818
    """A cluster cannot do the work."""


class CorruptState(KnapcacheError):  # noqa: N818
    """Totals and reality differ."""
