"""Offline replay: the traces of a run's ranks -> a timeline of the whole job (docs/timeline.md).

    timeline = simulate(run_folder)

The chain, one idea in each file:

    trace                          maya/trace reads it
      -> TraceDigest               trace_digest, trace_digests: a hash by which ranks that do the same are found
      -> RankClass                 rank_class: ranks that do the same, their communicators, kernels and calls
      -> Recording                 recording: all rank classes of a run; replays on different settings share it
      -> ReplayPlan                replay_plan, made by plan_compiler: queues of streams; host_segments, thread_groups
                                   and measured_host_times: the host's part
      -> ClassReplay               class_replay: the replay of a rank class. It keeps one set of times for each replay
                                   group, the ranks whose times have been the same so far; rendezvous and
                                   communicator_layout: where replay groups wait for each other
      -> GroupTimeline, Timeline   timeline, made by timeline_builder; truncated_traces: warnings

`simulate` runs the chain. A replay depends on run_settings (where and how the job ran), kernel_durations and
collective_times (how long kernels and collectives take). null_model is a cost model for tests; record_kinds says
which records of a trace matter.
"""
