"""Calls that were matched although they do not belong together: found by their call sites, without any processes."""

from __future__ import annotations

from coordinator.call_history import CallHistory, PastCall, make_sites
from coordinator.hangs.shifted_calls import Difference, Shift, find_shift


def history(*members: str, pending: int = 0) -> list[list[PastCall]]:
    """The history of members that called from the sites that the letters name, in this order. The last `pending` calls
    are not complete; a member whose letters end before them has not made them."""
    longest = max(map(len, members))
    calls = []
    for sequence in range(longest):
        sites: dict[int, list[int]] = {}
        for member, letters in enumerate(members):
            if sequence < len(letters):
                sites.setdefault(ord(letters[sequence]), []).append(member)
        all_alike = len(sites) == 1 and sum(map(len, sites.values())) == len(members)
        combined = make_sites(next(iter(sites)), None if all_alike else sites)
        calls.append(PastCall(sequence, 0, 1, combined, sequence < longest - pending))
    complete = CallHistory()
    for call in calls[: longest - pending]:
        complete.add(call)
    return complete.calls(calls[longest - pending :])


def shift_of(*members: str, pending: int = 0) -> Shift | None:
    return find_shift(history(*members, pending=pending))


def told(shift: Shift | None) -> tuple[Difference, int, tuple[int, ...], str] | None:
    if shift is None:
        return None
    return shift.difference, shift.sequence, shift.odd, "".join(chr(call.site) for call in shift.calls)


def test_a_call_that_one_member_leaves_out_is_found() -> None:
    assert told(shift_of("abababab", "abbabab", "abababab", pending=1)) == (Difference.SKIPPED, 2, (1,), "a")


def test_several_calls_that_one_member_leaves_out_are_found() -> None:
    shift = shift_of("abcdabcdabcd", "abcdadabcd", "abcdabcdabcd", pending=2)
    assert told(shift) == (Difference.SKIPPED, 5, (1,), "bc")


def test_a_call_that_one_member_makes_in_addition_is_found() -> None:
    assert told(shift_of("ababab", "abxabab", "ababab", pending=1)) == (Difference.EXTRA, 2, (1,), "x")


def test_a_call_left_out_between_equal_ones_is_found() -> None:
    shift = shift_of("aaabaaab", "aaabaab", "aaabaaab", pending=1)
    assert told(shift) == (Difference.SKIPPED, 6, (1,), "a")


def test_branches_that_meet_again_are_legal() -> None:
    assert shift_of("abxabxab", "abyabyab", "abxabxab") is None
    assert shift_of("xyaxyaxya", "yxaxyayxa") is None
    assert shift_of("rrrrrr", "ssssss") is None, "each member has a line of its own throughout"


def test_a_last_call_is_explained_by_the_order_of_earlier_ones() -> None:
    assert told(shift_of("abab", "abb", "abab", pending=2)) == (Difference.SKIPPED, 2, (1,), "a")
    assert told(shift_of("aba", "abb", "aba", pending=1)) == (Difference.SKIPPED, 2, (1,), "a")
    assert told(shift_of("aba", "abx", "aba", pending=1)) == (Difference.NEW, 2, (1,), "x")


def test_two_members_are_told_apart_by_what_is_usual() -> None:
    assert told(shift_of("abx", "aba", pending=1)) == (Difference.NEW, 2, (0,), "x")


def test_a_last_call_from_other_lines_that_is_complete_says_nothing() -> None:
    assert shift_of("abax", "abay") is None


def test_a_long_history_keeps_the_calls_around_new_combinations() -> None:
    before, after = "ab" * 1000, "ab" * 2000
    shift = shift_of(before + "ab" + after, before + "b" + after, before + "ab" + after, pending=1)
    assert told(shift) == (Difference.SKIPPED, 2000, (1,), "a")


def test_the_memory_of_a_history_is_bounded() -> None:
    calls = CallHistory()
    for sequence in range(20_000):
        sites = make_sites(0, {1 + sequence % 5000: [0], 7: [1]})
        calls.add(PastCall(sequence, 0, 1, sites))
    assert sum(map(len, calls.calls())) < 2500


def test_calls_of_unknown_sites_are_compared_by_operation_and_size() -> None:
    """Those that autograd makes have no Python stack."""
    calls = CallHistory()
    for sequence, (one, other) in enumerate(zip("abab", "abba", strict=True)):
        known = {0 if letter == "a" else ord(letter): [member] for member, letter in enumerate((one, other))}
        calls.add(PastCall(sequence, 0, 8, make_sites(0, known if len(known) > 1 else None)))
    assert find_shift(calls.calls()) is None, "the members meet again"
