"""Mechanisms that bend: a linear trend plus a Gaussian process in a Hilbert-space basis."""
