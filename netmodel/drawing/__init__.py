"""Clusters drawn: as text for a terminal, and as SVG."""
