"""Attractor dynamics of a DKM: energy, recall, sampling."""
