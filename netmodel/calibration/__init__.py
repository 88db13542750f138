"""Calibration: fit the parameters in a cluster's file to measurements, and report their error.

measurements.py  reads the output of nccl-tests, and CSV
structure.py     all measurements as arrays, so that a fit predicts them in one pass
fit.py           the fit, with errors on held-out measurements
"""
