"""The networks that join nodes: one module per kind, each turning so many nodes into switches and cables."""
