"""Uses of a value that a script has read from the GPU: branches that depend on it, or only prints."""

from __future__ import annotations

import textwrap

import pytest

from maya.results.read_uses import Branch, ReadUse, use_of_read


def _use(text: str) -> ReadUse:
    """The use of the read in the line that is marked with `# read`."""
    source = textwrap.dedent(text)
    (line,) = (number for number, each in enumerate(source.splitlines(), start=1) if "# read" in each)
    use = use_of_read(source, line)
    assert use is not None
    return use


@pytest.mark.parametrize(
    ("text", "branches"),
    [
        ("if torch.isnan(loss):  # read\n    raise ValueError", [Branch(1, "if ... raise")]),
        ("while error > 1e-3:  # read\n    step()", [Branch(1, "while")]),
        ("assert loss.item() < 3  # read", [Branch(1, "assert")]),
        ("for i in range(count.item()):  # read\n    step()", [Branch(1, "for")]),
        ("x = 1 if loss.item() < 3 else 2  # read", [Branch(1, "if")]),
        ("x = loss.item() if rank == 0 else 0  # read", []),
        ("kept = [i for i in range(3) if mask[i].item()]  # read", [Branch(1, "if")]),
        ("if rank == 0:\n    print(loss.item())  # read", []),
    ],
)
def test_a_read_in_a_test_is_a_branch(text: str, branches: list[Branch]) -> None:
    assert sorted(_use(text).branches) == branches


def test_a_branch_on_a_derived_name_is_found() -> None:
    use = _use(
        """
        def train():
            best, bad = float("inf"), 0
            for epoch in range(10):
                loss = step().item()  # read
                mean = loss / 8
                if mean < best:
                    best = mean
                else:
                    bad += 1
                if epoch == 3:
                    continue
                if best == 0:
                    break
        """
    )
    assert sorted(use.branches) == [Branch(7, "if"), Branch(13, "if ... break")]
    assert not use.is_printed_only


def test_what_a_branch_assigns_depends_on_it() -> None:
    use = _use(
        """
        while True:
            if step().item() < best:  # read
                waited = 0
            else:
                waited += 1
            if waited > 3:
                break
        """
    )
    assert sorted(use.branches) == [Branch(3, "if"), Branch(7, "if ... break")]


def test_a_list_of_values_counts_by_its_contents() -> None:
    use = _use(
        """
        losses = []
        for batch in data:
            losses.append(step(batch).item())  # read
            if len(losses) > 10:
                break
        if losses is None:
            pass
        if sum(losses) / len(losses) > 3:
            exit()
        """
    )
    assert sorted(use.branches) == [Branch(9, "if ... exit")]


def test_a_returned_value_is_followed_to_callers() -> None:
    use = _use(
        """
        def evaluate(model):
            total = 0.0
            total += model().item()  # read
            return total / 4

        def main():
            loss = evaluate(model)
            if loss < 1:
                return
        """
    )
    assert sorted(use.branches) == [Branch(9, "if ... return")]


def test_an_argument_is_followed_into_functions_of_the_file() -> None:
    use = _use(
        """
        class EarlyStopping:
            def __call__(self, score, model):
                if self.best is None or score < self.best:
                    self.best = score
                else:
                    self.count(score)

            def count(self, value):
                while value:
                    value -= 1
                if self.patience:
                    pass

        def report(loss, step):
            print(loss if step % 10 else step)

        stopping = EarlyStopping()
        stopping(loss.item(), model)  # read
        """
    )
    assert sorted(use.branches) == [Branch(4, "if"), Branch(10, "while")]


def test_names_of_other_functions_do_not_count() -> None:
    use = _use(
        """
        def one():
            loss = step().item()  # read
            return None

        def other(loss):
            if loss:
                pass
        """
    )
    assert use.branches == set()


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("print(loss.item())  # read", True),
        ("logger.info('%f', loss.item())  # read", True),
        ("logger.log({'loss': loss.item()})  # read", True),
        ("self.log('loss', loss.item())  # read", False),  # may reach a callback that stops the training
        ("def f():\n    x = loss.item()  # read\n    y = x / 2\n    print(y)", True),
        ("def f():\n    x = loss.item()  # read\n    print(x)\n    save(x)", False),
        ("def f():\n    x = loss.item()  # read\n    print(x)\n    return x", False),
        ("def f():\n    self.x = loss.item()  # read\n    print(self.x)", False),
        ("losses.append(loss.item())  # read", False),
        ("scaler.step(optimizer)  # read", False),
    ],
)
def test_a_value_may_only_be_printed(text: str, printed: bool) -> None:
    assert _use(text).is_printed_only == printed


def test_a_file_that_is_no_python_says_nothing() -> None:
    assert use_of_read("if (", 1) is None
    assert use_of_read("x = 1", 7) is None
