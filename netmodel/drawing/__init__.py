"""Drawings of clusters.

terminal.py  as text
svg.py       as SVG; canvas.py has its shapes
facts.py     the figures that both show
"""
