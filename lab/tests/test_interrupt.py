"""Ctrl-C while a process is started is held back until the process is known."""

from __future__ import annotations

import signal

import pytest

from tapdeck_lab import interrupt


class _Fault(Exception):
    pass


def _press(done: list[str], fault: Exception | None = None) -> None:
    with interrupt.held_back():
        signal.raise_signal(signal.SIGINT)
        done.append("the block")
        if fault:
            raise fault


def test_ctrl_c_comes_after_the_block_and_not_in_it() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _press(done)
    assert done == ["the block"]


def test_without_ctrl_c_all_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupt.held_back():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fault_in_the_block_is_not_hidden_by_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(_Fault):
        _press([], _Fault())
    assert signal.getsignal(signal.SIGINT) is before
