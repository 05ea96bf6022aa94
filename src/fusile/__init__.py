"""Fusile: an optimizing compiler for machine-learning programs, in Python."""

from fusile.base.version import VERSION as __version__

__all__ = ["__version__"]
