"""Every error knapcache raises on purpose.

KnapcacheError
├── InvalidInput (also ValueError)    an argument, a file or an option that cannot be used: says what is allowed
├── MissingExtra (also ImportError)   a package that is not installed: says which extra brings it
├── CorruptState                      check() found that totals and reality differ: a bug, never the user's fault
└── StoreError                        a store could not do it now (disk full, locked, damaged): answer, and do not keep
    └── NotOwner                      another process writes to this store: read, or hand over
"""


class KnapcacheError(Exception):
    """Root of the tree: catch this to catch everything knapcache raises on purpose."""


class InvalidInput(KnapcacheError, ValueError):  # noqa: N818 - reads as what it is, as in the drawing above
    """An argument, a file or an option cannot be used."""


class MissingExtra(KnapcacheError, ImportError):  # noqa: N818
    """An optional package is not installed."""


class CorruptState(KnapcacheError):  # noqa: N818
    """Totals and reality differ."""


class StoreError(KnapcacheError):
    """A store could not do what was asked. Nothing is half done, and the store goes on."""


class NotOwner(StoreError):  # noqa: N818
    """Another process owns the store and does the writing."""
