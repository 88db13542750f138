"""The helper that runs several checks in one program: a failed check does not hide the others."""

from __future__ import annotations

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import run_plain_python


def outcomes_of(text: str) -> Outcomes:
    return Checks(text).run(run_plain_python)


THREE = """
    opened = []

    def after_each():
        opened.clear()

    def _helper():
        opened.append(1)

    def first():
        _helper()

    def second():
        assert opened == [1], "nothing is open"

    def third():
        assert not opened
    """


def test_functions_without_parameters_are_checks() -> None:
    assert Checks(THREE).names == ["first", "second", "third"]


def test_checks_after_a_failed_one_still_run() -> None:
    outcomes = outcomes_of(THREE)
    outcomes.require("first")
    outcomes.require("third")


def test_a_failed_check_shows_its_traceback() -> None:
    with pytest.raises(AssertionError, match="nothing is open"):
        outcomes_of(THREE).require("second")


def test_checks_that_were_not_reached_fail() -> None:
    outcomes = outcomes_of("""
        import os

        def first():
            os._exit(3)

        def second():
            pass
        """)
    with pytest.raises(AssertionError, match="the program ended before second"):
        outcomes.require("second")


def test_a_program_that_fails_at_its_end_fails_its_checks() -> None:
    outcomes = outcomes_of("""
        import atexit, os

        def first():
            atexit.register(os._exit, 3)
        """)
    with pytest.raises(AssertionError, match="failed after its checks"):
        outcomes.require("first")
