"""A program asks no name server for the name of this machine."""

from __future__ import annotations

from helpers.script_run import MayaRun


def test_the_name_of_this_machine_needs_no_name_server(maya_run: MayaRun) -> None:
    run = maya_run("""
        import socket

        for address in ("127.0.0.1", 80), ("::1", 80, 0, 0), ("::ffff:127.0.0.1", 80, 0, 0):
            print(*socket.getnameinfo(address, socket.NI_NUMERICSERV))
            print(*socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV))
    """)
    numbers = ["127.0.0.1 80", "::1 80", "::ffff:127.0.0.1 80"]
    assert run.stdout.splitlines() == [line for number in numbers for line in ("localhost 80", number)]
