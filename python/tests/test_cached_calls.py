"""Calls that find a plan in the cache: what the plan does not know is compared on every call."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from typing import Any

import fuzz_calls
import numpy
import pytest
from conftest import Case, close, to

import deltarelay
from deltarelay import _plans, stages

LATE = {"late_lengths": True, "l2norm": True}


def longer(case: Case, name: str, tokens: int) -> numpy.ndarray:
    """The rows of one argument, repeated or cut to another number of tokens."""
    value = getattr(case, name)
    return numpy.array(value.take(numpy.arange(tokens) % len(value), 0))


@pytest.mark.usefixtures("binding")
@pytest.mark.parametrize("tokens", [970, 1020])  # of the bucket of 1,000
@pytest.mark.parametrize("name", ["k", "v", "g", "beta", "o"])
def test_another_token_count_is_refused(framework: str, name: str, tokens: int) -> None:
    case = Case("gdn", [400, 600])
    rows = {each: to(framework, getattr(case, each)) for each in ("q", "k", "v", "g", "beta")}
    rows["o"] = to(framework, numpy.zeros_like(case.v))
    offsets = to(framework, case.offsets)
    deltarelay.forward("gdn", **rows, seq_offsets=offsets, **LATE)
    case.o = numpy.zeros_like(case.v)
    rows[name] = to(framework, longer(case, name, tokens))
    with pytest.raises(deltarelay.Invalid, match=rf"^{name}: expected \[1000.*found \[{tokens}"):
        deltarelay.forward("gdn", **rows, seq_offsets=offsets, **LATE)


@pytest.mark.usefixtures("binding")
@pytest.mark.parametrize("name", ["k", "v", "g", "beta"])
def test_another_token_count_of_a_stage_is_refused(framework: str, name: str) -> None:
    case = Case("kda", [400, 600], hqk=2)
    rows = {each: to(framework, getattr(case, each)) for each in ("q", "k", "v", "g", "beta")}
    offsets = to(framework, case.offsets)
    stages.chunk_local("kda", **rows, seq_offsets=offsets, **LATE)
    rows[name] = to(framework, longer(case, name, 970))
    with pytest.raises(deltarelay.Invalid, match=rf"^{name}: expected \[1000\] .*found \[970\]"):
        stages.chunk_local("kda", **rows, seq_offsets=offsets, **LATE)


@pytest.mark.usefixtures("binding")
def test_one_token_and_rows_that_are_one(framework: str) -> None:
    """An axis of one index has any stride, one whose rows are all the same has stride 0: two plans of one bucket."""
    case = Case("gdn", [1])
    tokens = 60
    wide = [to(framework, numpy.repeat(x, tokens, 0)) for x in case.rows]
    one = [to(framework, x) for x in case.rows]
    offsets = [to(framework, numpy.array([0, n], "i4")) for n in (1, tokens)]
    if framework == "torch":
        same = [x.expand(tokens, *x.shape[1:]) for x in one]
    else:
        same = [numpy.broadcast_to(x, (tokens, *x.shape[1:])) for x in one]
    expected = deltarelay.forward("gdn", *wide, seq_offsets=offsets[1], late_lengths=True)
    _plans.PLANS.clear()
    deltarelay.forward("gdn", *one, seq_offsets=offsets[0], late_lengths=True)
    found = deltarelay.forward("gdn", *same, seq_offsets=offsets[1], late_lengths=True)
    close(found.o, numpy.asarray(expected.o), 1e-9)


@pytest.mark.usefixtures("binding")
def test_lists_that_are_copied_are_copied_once(framework: str) -> None:
    """An index of one entry with a stride of its own, offsets that are not contiguous: read, not copied for ever."""
    case = Case("gdn", [40])
    rows = {name: to(framework, getattr(case, name)) for name in ("q", "k", "v", "g", "beta")}
    wide = to(framework, numpy.array([0, -1, 40, -1], "i4"))
    index = to(framework, numpy.zeros((1, 3), "i4"))[:, 1] if framework == "torch" else numpy.zeros(3, "i4")[::-3]
    for _ in range(2):
        found = deltarelay.forward(
            "gdn",
            **rows,
            seq_offsets=wide[::2],
            initial=to(framework, case.initial),
            initial_index=index,
            state_layout="key_major",
        )
        close(found.o, case.expected()[0])
        stages.chunk_local("gdn", **rows, seq_offsets=wide[::2])


@pytest.mark.usefixtures("binding")
def test_lists_of_checkpoints_have_their_lengths(framework: str) -> None:
    case = Case("gdn", [100])
    rows = [to(framework, x) for x in case.rows]
    pool = to(framework, numpy.zeros((10, 2, 24, 16), "f4"))
    index = to(framework, numpy.arange(9, 3, -1, dtype="i4"))
    positions = to(framework, numpy.array([16, 32, 48, 64, 80], "i4"))
    offsets = to(framework, numpy.array([0, 5], "i4"))
    deltarelay.forward("gdn", *rows, checkpoints=16, checkpoint=pool, checkpoint_index=index)
    with pytest.raises(deltarelay.Invalid, match="checkpoint_index: expected at least 6 entries.*found 1"):
        deltarelay.forward("gdn", *rows, checkpoints=16, checkpoint=pool, checkpoint_index=index[:1])

    def listed(positions: Any, index: Any, offsets: Any = offsets) -> Any:
        return deltarelay.forward(
            "gdn",
            *rows,
            checkpoints="list",
            checkpoint=pool,
            checkpoint_offsets=offsets,
            checkpoint_positions=positions,
            checkpoint_index=index,
        )

    listed(positions, index)
    with pytest.raises(deltarelay.Invalid, match="checkpoint_index: expected at least 5 entries.*found 4"):
        listed(positions, index[:4])
    listed(positions[:4], index[:4], to(framework, numpy.array([0, 4], "i4")))  # now the plan is there
    pool[:] = 0
    with pytest.raises(deltarelay.Invalid, match=r"checkpoint_offsets\[1\]: expected at most 4, .*found 5"):
        listed(positions[:4], index[:4])
    assert not pool.any(), "a refused call has written"
    far = to(framework, numpy.array([0, 2**31 - 1], "i4"))
    with pytest.raises(deltarelay.Invalid, match=r"checkpoint_offsets\[1\]: expected at most 4, .*found 2147483647"):
        listed(positions[:4], index[:4], far)


@pytest.mark.usefixtures("binding")
@pytest.mark.parametrize("name", ["initial", "final", "checkpoint"])
def test_pools_of_no_states_are_refused(framework: str, name: str) -> None:
    case = Case("gdn", [100])
    how = {name: to(framework, numpy.zeros((0, 2, 24, 16), "f4"))}
    how[f"{name}_index"] = to(framework, numpy.zeros(1 if name != "checkpoint" else 6, "i4"))
    if name == "checkpoint":
        how["checkpoints"] = 16
    with pytest.raises(deltarelay.Invalid, match=rf"^{name}: expected at least one state, found \[0, 2, 24, 16\]"):
        deltarelay.forward("gdn", *(to(framework, x) for x in case.rows), **how)


@pytest.mark.usefixtures("binding")
@pytest.mark.parametrize("name", ["q", "g", "seq_offsets", "initial"])
def test_the_byte_order_is_that_of_the_machine(name: str) -> None:
    case = Case("kda", [30, 12])
    arrays = {each: getattr(case, each) for each in ("q", "k", "v", "g", "beta", "initial")}
    arrays["seq_offsets"] = case.offsets
    deltarelay.forward("kda", **arrays, state_layout="key_major")
    arrays[name] = arrays[name].astype(arrays[name].dtype.newbyteorder(">"))
    with pytest.raises(deltarelay.WrongType, match=f"{name}: expected the byte order of this machine, found '>"):
        deltarelay.forward("kda", **arrays, state_layout="key_major")


def test_last_call_is_the_last_one() -> None:
    """Also if its arrays can only be read the long way, after a call that was passed on."""
    from deltarelay import _call

    class Sub(numpy.ndarray):
        pass

    case = Case("kda", [30])
    _call.note_declined("a test")
    assert deltarelay.last_call().declined == "a test"
    deltarelay.forward("kda", case.q.view(Sub), *case.rows[1:])
    last = deltarelay.last_call()
    assert (last.declined, last.copies, last.binding, last.backend) == ("", (), "ctypes", "cpu")
    turned = numpy.asfortranarray(case.k).view(Sub)
    deltarelay.forward("kda", case.q, turned, *case.rows[2:])
    assert (deltarelay.last_call().copies, deltarelay.last_call().binding) == (("k",), "ctypes")


def test_plans_are_copied_as_one_and_never_pickled() -> None:
    case = Case("gdn", [50])
    plan = deltarelay.plan("gdn", *case.rows)
    for other in (copy.copy(plan), copy.deepcopy({"plan": plan})["plan"]):
        assert other is plan
    del other
    assert plan.summary["num_segments"] >= 1
    with pytest.raises(deltarelay.WrongType, match="plan: expected an object that can be pickled, found a Plan"):
        pickle.dumps(plan)


def test_a_forked_process_makes_plans() -> None:
    """While another thread of its parent was holding the lock of the cache."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with _plans._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    case = Case("gdn", [77])
    child = os.fork()
    if child == 0:
        deltarelay.forward("gdn", *case.rows, threads=1)
        os._exit(0)
    try:
        end = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        done.set()
        thread.join()
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0), "the child waits for a lock of its parent"


@pytest.mark.usefixtures("binding")
@pytest.mark.parametrize("seed", range(1, 40))
def test_spoilt_calls(framework: str, seed: int) -> None:
    """A plan in the cache changes neither results nor refusals. `fuzz_calls.py` draws more."""
    with fuzz_calls.zeroed_memory():
        assert fuzz_calls.check(seed, framework) == []
