"""Ordinary Lightning modules and networks: nothing here knows about privacy."""
