"""The coordinator of a session of `maya exec` or `maya shell`: processes connect before their ranks are known."""
