"""Nonlinear mechanisms: a linear trend plus a Gaussian process in a Hilbert-space basis."""
