"""The timeline of a cluster: what every rank did when, computed from the ranks' traces (docs/timeline.md).

timeline = simulate(run_folder)

settings, durations, network
                   what it depends on besides the traces: where the job ran, how long works and collectives take
outline, outlines, threads, behaviour, recording
                   traces -> which ranks did the same, and what
course, program, host
                   one behaviour's trace -> queues of its streams, stretches of its host threads
cohort, layout, meetings
                   replaying them
simulate, results, timeline
                   all of it together, and what comes out
null               a cost model for tests
"""
