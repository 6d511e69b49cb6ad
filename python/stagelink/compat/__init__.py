"""Modules that stand in for other libraries, with those libraries' names and calls."""
