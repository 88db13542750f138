"""What runs beside the ranks, one process for a whole job: it will start them, match their collectives and keep time.

Nothing lives here yet: `maya-torchrun` runs a single rank, which needs no coordinator.
"""
