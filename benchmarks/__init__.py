"""Measurements beside the peers, in one run on one machine: `make bench`. See README.md."""
