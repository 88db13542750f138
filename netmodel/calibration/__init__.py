"""Calibration: from measurements of a cluster to the parameters in its file, and how far these are off."""
