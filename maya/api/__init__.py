"""Maya's Python API, for notebooks and other tools; docs/python.md. `maya` offers its public names.

run               `load` -> `Run`: the folder of a run of maya-torchrun
run_prediction    `RunPrediction`: what the run takes on a cluster, recorded or another one
figures           the parts of a prediction: steps, breakdown, memory, collectives, kernels, ranks
run_comparison    `RunComparison`: two predictions side by side
job_launch        `launch`: start maya-torchrun and load its run
op_estimate       `estimate`: the time of one op on a GPU
trace_estimate    `estimate_trace`: the time of every kernel in a trace
cluster_network   `network`: the time of collectives on a cluster
"""
