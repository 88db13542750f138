"""The timeline of a cluster: what every rank did when, computed from the ranks' traces.

timeline = simulate(run_folder)
"""
