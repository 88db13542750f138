"""What tests of several files share: writers of traces, launchers of jobs, reference models."""
