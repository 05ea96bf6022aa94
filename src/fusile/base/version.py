"""Fusile's version: part of every cache key and saved program."""

VERSION = "0.1.0"
