"""`--inject`: faults as text or in a file, and the ones that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from maya.launcher.arguments import parse as parse_command
from maya.launcher.injected_faults import (
    EVERY_ATTEMPT,
    FaultError,
    InjectedFault,
    InjectedLinkFault,
    parse,
    read_file,
)
from maya.launcher.injection_options import Injection

# ---- what users write ----


def test_faults_are_parsed() -> None:
    assert parse("kill:rank=3,call=10") == InjectedFault("kill", 3, "call", 10)
    assert parse("raise:rank=0,step=2,attempt=all") == InjectedFault("raise", 0, "step", 2, attempt=EVERY_ATTEMPT)
    assert parse("delay:rank=0,call=2,seconds=1.5") == InjectedFault("delay", 0, "call", 2, seconds=1.5)
    assert parse("oom:rank=1,bytes=1GiB") == InjectedFault("oom", 1, "bytes", 1 << 30)
    assert parse("link:at=leaf0:spine1#2,left=25%") == InjectedLinkFault("leaf0:spine1#2=25%")
    assert parse("link:at=node0/nic3") == InjectedLinkFault("node0/nic3=lost")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kil:rank=1,call=2", 'there is no fault "kil" (did you mean kill?)'),
        ("kill:rnk=1,call=2", 'unknown key "rnk" (did you mean rank?); kill takes rank and call or step'),
        ("kill:rank=1", "kill takes rank and call or step"),
        ("kill:rank=1,call=1,step=1", "kill takes rank and call or step"),
        ("drop:rank=one,call=2", "rank: 'one' is not a whole number"),
        ("drop:rank=1,step=2", 'unknown key "step"'),
        ("drop:rank=1,call=0", "call: 0 is not a whole number of at least 1"),
        ("drop:rank=1,rank=2,call=1", "rank is given twice"),
        ("delay:rank=1,call=2,seconds=0", "seconds: 0 is not a number of seconds"),
        ("oom:rank=1,bytes=much", 'bytes: "much" is not a size'),
        ("link:at=node0/nic3,left=110%", "between 0 and 1"),
        ("link:at=node0/nic3,left=slow", "neither a percentage of its rate"),
    ],
)
def test_malformed_faults_are_refused(text: str, expected: str) -> None:
    with pytest.raises(FaultError) as found:
        parse(text)
    assert expected in str(found.value)


def test_faults_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('[[kill]]\nrank = 3\ncall = 10\n[[link]]\nat = "node0/nic3"\nleft = "25%"\n', encoding="utf-8")
    assert read_file(str(file)) == (InjectedFault("kill", 3, "call", 10), InjectedLinkFault("node0/nic3=25%"))
    for content, expected in (
        ("[[kill]]\nrank = 3\ncal = 10", '[[kill]] number 1: unknown key "cal" (did you mean call?)'),
        ("[[kil]]\nrank = 3", 'there is no fault "kil" (did you mean kill?)'),
        ("[kill]\nrank = 3", "expected tables, [[kill]]"),
        ("[[kill]", "not valid TOML"),
    ):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(FaultError) as found:
            read_file(str(file))
        assert expected in str(found.value)
        assert str(file) in str(found.value)


def test_a_rank_gets_its_own_faults_of_its_attempt() -> None:
    words = (
        "kill:rank=1,call=2",
        "raise:rank=1,step=3,attempt=2",
        "drop:rank=1,call=4,attempt=all",
        "oom:rank=0,step=1",
    )
    injection = Injection(tuple(map(parse, words)))
    assert injection.of_rank(1, 0) == "kill:rank=1,call=2;drop:rank=1,call=4"
    assert injection.of_rank(1, 1) == "raise:rank=1,step=3;drop:rank=1,call=4"
    assert injection.of_rank(0, 1) == ""
    assert injection.texts() == words


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--inject", "kill:rank=2,call=1"], "there is no rank 2; ranks are 0 to 1"),
        (["--inject", "kill:rank=1,call=1,attempt=3", "--max-restarts", "1"], "such attempt without --max-restarts 2"),
        (["--inject", "link:at=node0/nic3", "--no-trace"], "a link takes virtual time, which --no-trace does without"),
        (["--inject", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--schedule-seed", "-1"], "'-1' is not a whole number"),
    ],
)
def test_faults_that_could_never_happen_are_refused(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command(["--nproc", "2", *options, "train.py"], {})
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
