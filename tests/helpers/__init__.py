"""Helpers for tests of several files: writers of traces, launchers of jobs, reference models."""
