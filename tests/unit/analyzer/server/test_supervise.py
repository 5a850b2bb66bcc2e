"""Child processes: what they answer arrives, and they are ended when they take too much."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.server.supervise import Child, Stopped
from support.team_server import PATIENCE_S, gone

TESTS = Path(__file__).resolve().parents[3]


@pytest.fixture
def child() -> Iterator[Child]:
    found = Child("support.answering_child", {"PYTHONPATH": str(TESTS), "GIVEN": "1"})
    yield found
    found.end()


def later() -> float:
    """A deadline that no test reaches."""
    return time.monotonic() + PATIENCE_S


def test_an_answer_of_any_length_arrives_whole(child: Child) -> None:
    for content in (b"", b"x", os.urandom(5 << 20)):
        child.send(b"echo " + content)
        assert child.receive(later()) == content


def test_answers_that_wait_are_received_one_by_one(child: Child) -> None:
    child.send(b"echo one")
    child.send(b"echo two")
    assert [child.receive(later()), child.receive(later())] == [b"one", b"two"]


def test_a_child_has_the_environment_that_it_is_given_and_no_other(child: Child) -> None:
    child.send(b"environment")
    names = child.receive(later()).decode().split()
    assert "GIVEN" in names
    assert "HOME" not in names


@pytest.mark.parametrize("message", [b"sleep", b"half"])
def test_a_child_that_takes_too_long_is_ended(child: Child, message: bytes) -> None:
    """Also one that stops in the middle of its answer."""
    child.send(message)
    with pytest.raises(Stopped) as stopped:
        child.receive(time.monotonic())
    assert stopped.value.reason == "time"
    assert gone(child.pid)


def test_a_child_that_holds_too_much_memory_is_ended(child: Child) -> None:
    child.send(b"echo ready")
    child.receive(later(), memory_bytes=100 << 20)
    child.send(b"hold %d" % (200 << 20))
    with pytest.raises(Stopped) as stopped:
        child.receive(later(), memory_bytes=100 << 20)
    assert stopped.value.reason == "memory"
    assert gone(child.pid)


def test_an_answer_that_is_too_long_is_not_taken(child: Child) -> None:
    child.send(b"echo 12345")
    with pytest.raises(Stopped) as stopped:
        child.receive(later(), answer_bytes=4)
    assert stopped.value.reason == "size"
    assert gone(child.pid)


def test_a_child_is_ended_when_that_is_asked_for(child: Child) -> None:
    child.send(b"sleep")
    with pytest.raises(Stopped) as stopped:
        child.receive(later(), is_asked_to_stop=lambda: True)
    assert stopped.value.reason == "asked"


def test_a_child_that_has_ended_is_said_to_have(child: Child) -> None:
    child.send(b"exit")
    with pytest.raises(Stopped) as stopped:
        child.receive(later())
    assert stopped.value.reason == "ended"
    with pytest.raises(Stopped):
        child.send(b"echo again")


def test_a_child_ends_with_its_server(child: Child) -> None:
    child._socket.close()
    child._process.wait(PATIENCE_S)
