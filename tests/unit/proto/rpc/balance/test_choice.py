"""Which pod gets a call: tables and properties of the pure choice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from omni_proto.rpc.balance.choice import BOUND, STALE_S, Affinity, Fault, Outcome, PodTable, Reason, Ring, hash_key
from omni_proto.rpc.balance.outliers import BASE_S, FAILURES, SAMPLES, ejection_s, is_slow, relative_pace
from omni_proto.rpc.balance.report import LoadReport

GOOD, BAD = Outcome(pace_s=0.1), Outcome(is_fault=True)
FIRST, SECOND = (0.0, 0.0), (0.99, 0.0)
"""Draws that compare the first pod with the second, and the last with the first."""


def table(*pods: str, connected: bool = True) -> PodTable:
    made = PodTable()
    made.replace(pods)
    for pod in pods if connected else ():
        made.set_connected(pod, True)
    return made


def call(pods: PodTable, pod: str, outcome: Outcome = GOOD, now: float = 0.0) -> None:
    pods.begin(pod)
    pods.end(pod, outcome, now)


def pick(pods: PodTable, draws: tuple[float, float] = FIRST, now: float = 0.0, **more: object) -> tuple[str, Reason]:
    choice = pods.choose(now, draws, **more)  # type: ignore[arg-type]
    assert choice is not None
    return choice


def eject(pods: PodTable, pod: str, now: float = 0.0) -> None:
    for _ in range(FAILURES):
        call(pods, pod, BAD, now)


def test_no_pod_and_one_pod() -> None:
    assert table().choose(0.0, FIRST) is None
    assert table("a", connected=False).choose(0.0, FIRST) is None
    assert pick(table("a")) == ("a", Reason.ONLY)


@pytest.mark.parametrize(
    ("calls", "reported", "age_s", "chosen"),
    [
        ((0, 0), (0, 0), 0.0, "a"),
        ((1, 0), (0, 0), 0.0, "b"),
        ((0, 0), (3, 0), 0.0, "b"),
        ((0, 1), (3, 0), 0.0, "b"),
        ((0, 1), (3, 0), STALE_S, "a"),
        ((2, 0), (2, 0), 0.0, "b"),
        ((2, 1), (2, 3), 0.0, "a"),
        ((0, 1), (1.8, 0), STALE_S / 2, "a"),
    ],
    ids=[
        "a tie: the first",
        "own calls",
        "calls of others",
        "both",
        "an old report counts nothing",
        "a report counts own calls too",
        "others' calls decide",
        "half as old, half the weight",
    ],
)
def test_the_less_loaded_of_two(
    calls: tuple[int, int], reported: tuple[float, float], age_s: float, chosen: str
) -> None:
    pods = table("a", "b")
    for pod, count, running in zip("ab", calls, reported, strict=True):
        for _ in range(count):
            pods.begin(pod)
        pods.report(pod, LoadReport(running=running), now=0.0)
    assert pick(pods, now=age_s) == (chosen, Reason.TWO_CHOICES)


def test_a_retry_goes_elsewhere_if_it_can() -> None:
    pods = table("a", "b")
    assert pick(pods, avoid={"a"})[0] == "b"
    assert pick(pods, avoid={"a", "b"})[0] == "a"


def test_failures_eject_a_pod_and_a_probe_readmits_it() -> None:
    faults: list[tuple[str, Fault]] = []
    pods = PodTable(lambda pod, fault: faults.append((pod, fault)))
    pods.replace("ab")
    pods.set_connected("a", True)
    pods.set_connected("b", True)
    call(pods, "a", BAD)
    call(pods, "a", GOOD)
    for _ in range(FAILURES - 1):
        call(pods, "a", BAD)
    assert not pods.ejected, "a success between them"
    call(pods, "a", BAD)
    assert (pods.ejected, faults) == ({"a"}, [("a", Fault.FAILING)])
    assert pick(pods, now=BASE_S - 0.01) == ("b", Reason.ONLY)
    assert pick(pods, now=BASE_S) == ("a", Reason.PROBE)
    pods.begin("a")
    assert pick(pods, now=BASE_S) == ("b", Reason.ONLY), "one probe at a time"
    pods.end("a", BAD, BASE_S)
    assert pick(pods, now=3 * BASE_S - 0.01) == ("b", Reason.ONLY), "the second ejection lasts twice as long"
    assert pick(pods, now=3 * BASE_S) == ("a", Reason.PROBE)
    call(pods, "a", GOOD, 3 * BASE_S)
    assert not pods.ejected
    assert len(faults) == 2


def test_a_probe_that_says_nothing_is_repeated() -> None:
    pods = table("a", "b")
    eject(pods, "a")
    for _ in range(2):
        assert pick(pods, now=BASE_S) == ("a", Reason.PROBE)
        call(pods, "a", Outcome(), BASE_S)


def test_at_most_half_of_the_pods_are_ejected() -> None:
    pods = table("a", "b", "c")
    for pod in "abc":
        eject(pods, pod)
    assert len(pods.ejected) == 1
    lone = table("a")
    eject(lone, "a")
    assert not lone.ejected


def test_ejected_pods_serve_when_no_other_is_connected() -> None:
    pods = table("a", "b")
    eject(pods, "a")
    pods.set_connected("b", False)
    assert pick(pods) == ("a", Reason.PANIC)


def test_a_slow_pod_is_ejected() -> None:
    pods = table("a", "b", "c")
    for _ in range(SAMPLES):
        for pod, pace in zip("abc", (0.1, 1.0, 0.12), strict=True):
            call(pods, pod, Outcome(pace_s=pace))
    pick(pods, now=1.0)
    assert pods.ejected == {"b"}
    pick(pods, now=1.0 + BASE_S)
    call(pods, "b", Outcome(pace_s=1.0), 1.0 + BASE_S)
    assert pods.ejected == {"b"}, "its probe was slow too"


def test_a_pod_of_half_the_speed_gets_fewer_calls() -> None:
    pods = table("a", "b")
    for _ in range(SAMPLES):
        call(pods, "a", Outcome(pace_s=0.2))
        call(pods, "b", Outcome(pace_s=0.1))
    assert pick(pods, now=1.0)[0] == "b"
    pods.begin("b")
    pods.begin("b")
    assert pick(pods, now=1.0)[0] == "a"


@pytest.mark.parametrize(
    ("pace", "others", "slow"),
    [
        (1.0, [], False),
        (1.0, [0.2], True),
        (0.79, [0.2], False),
        (1.0, [0.2, 0.9, 0.95], False),
        (0.01, [0.001], False),
    ],
)
def test_slowness(pace: float, others: list[float], slow: bool) -> None:
    assert is_slow(pace, others) is slow


def test_ejections_grow_to_a_maximum_and_paces_weigh_within_bounds() -> None:
    assert [ejection_s(count) for count in (1, 2, 10, 11)] == [30.0, 60.0, 300.0, 300.0]
    assert [relative_pace(pace, 1.0) for pace in (0.01, 0.5, 0.9, 1.2, 2.0, 100.0)] == [0.25, 0.5, 1.0, 1.0, 2.0, 4.0]


def test_a_pod_that_goes_and_comes_back_is_new() -> None:
    pods = table("a", "b")
    pods.begin("a")
    pods.replace(["b", "c"])
    pods.set_connected("c", True)
    pods.end("a", GOOD, 0.0)
    assert pods.addresses == {"b", "c"}
    pods.replace(["a", "b", "c"])
    assert (pods.calls("a"), pods.connected) == (0, 2)


def test_later_turns_stick_and_first_turns_draw_the_owner() -> None:
    pods = table(*"abcdefgh")
    key = hash_key(b"a conversation")
    owner = next(Ring("abcdefgh").walk(key))
    assert pick(pods, affinity=Affinity(key, is_later_turn=True)) == (owner, Reason.STICKY)
    assert {pick(pods, (one / 8, 0.5), affinity=Affinity(key))[0] for one in range(8)} == {owner}
    for _ in range(3):
        pods.begin(owner)
    after, reason = pick(pods, affinity=Affinity(key, is_later_turn=True))
    assert (after, reason) == (list(Ring("abcdefgh").walk(key))[1], Reason.OVERFLOW)
    assert pick(pods, affinity=Affinity(key))[0] != owner


def test_few_keys_move_when_a_pod_comes() -> None:
    before, after = Ring([f"pod{n}" for n in range(10)]), Ring([f"pod{n}" for n in range(11)])
    keys = [hash_key(str(n).encode()) for n in range(2000)]
    moved = [key for key in keys if next(before.walk(key)) != next(after.walk(key))]
    assert len(moved) < len(keys) * 2 / 11
    assert {next(after.walk(key)) for key in moved} == {"pod10"}


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["choose", "later", "end", "fail", "slow", "leave", "connect", "report", "wait"]),
        st.integers(0, 2**16),
    ),
    max_size=150,
)


@given(st.integers(1, 6), _EVENTS)
@settings(max_examples=150)
def test_an_ejected_pod_is_never_chosen_while_another_lives(count: int, events: list[tuple[str, int]]) -> None:
    names = [f"pod{n}" for n in range(count)]
    pods, now, ends = table(*names), 0.0, dict[str, float]()
    pods._on_ejection = lambda pod, fault: ends.__setitem__(pod, now)
    connected, calls = set(names), list[str]()
    for kind, value in events:
        draw = random.Random(value)
        name = draw.choice(names)
        if kind in ("choose", "later"):
            affinity = Affinity(value, is_later_turn=True) if kind == "later" else None
            choice = pods.choose(now, (draw.random(), draw.random()), affinity)
            assert (choice is None) is (not connected)
            if choice is None:
                continue
            assert choice.address in connected
            if choice.address in pods.ejected and choice.reason is not Reason.PROBE:
                assert connected <= pods.ejected
            if choice.reason is Reason.PROBE:
                assert now - ends[choice.address] >= BASE_S
            pods.begin(choice.address)
            calls.append(choice.address)
        elif kind in ("end", "fail", "slow") and calls:
            outcome = {"end": GOOD, "fail": BAD, "slow": Outcome(pace_s=5.0)}[kind]
            pods.end(calls.pop(value % len(calls)), outcome, now)
        elif kind in ("leave", "connect"):
            pods.set_connected(name, kind == "connect")
            connected = connected | {name} if kind == "connect" else connected - {name}
        elif kind == "report":
            pods.report(name, LoadReport(running=value % 50), now)
        elif kind == "wait":
            now += value % 40
        assert sum(pods.calls(name) for name in names) == len(calls)


@given(st.integers(2, 20), st.integers(1, 300), st.integers(1, 5), st.integers(0, 2**32))
@settings(max_examples=60)
def test_later_turns_never_exceed_the_bound(count: int, calls: int, conversations: int, seed: int) -> None:
    draw, pods = random.Random(seed), table(*(f"pod{n}" for n in range(count)))
    for number in range(calls):
        key = hash_key(str(draw.randrange(conversations)).encode())
        chosen, _ = pick(pods, affinity=Affinity(key, is_later_turn=True))
        pods.begin(chosen)
        assert pods.calls(chosen) <= -(-BOUND * (number + 1) // count)


@pytest.mark.parametrize("callers", [1, 2, 8])
def test_callers_that_know_nothing_of_each_other_do_not_herd(callers: int) -> None:
    """All begin calls at once, with the same old reports, by which one pod is empty: it does not get all of them."""
    draw = random.Random(7)
    names = [f"pod{n}" for n in range(8)]
    tables = [table(*names) for _ in range(callers)]
    for pods in tables:
        for name in names:
            pods.report(name, LoadReport(running=0 if name == "pod3" else 4), now=0.0)
    load: Counter[str] = Counter()
    for number in range(400):
        pods = tables[number % callers]
        chosen, _ = pick(pods, (draw.random(), draw.random()))
        pods.begin(chosen)
        load[chosen] += 1
    assert max(load.values()) <= 400 / 8 * 1.5


def test_reports_keep_ignorant_callers_even() -> None:
    """Two callers, each with calls of its own; a pod reports its whole load at each call. No pod gets far ahead."""
    draw = random.Random(3)
    names = [f"pod{n}" for n in range(4)]
    tables = [table(*names) for _ in range(2)]
    load, running, worst = Counter[str](), list[tuple[PodTable, str]](), 0
    for number in range(4000):
        pods = tables[number % 2]
        chosen, _ = pick(pods, (draw.random(), draw.random()), now=number / 1000)
        pods.begin(chosen)
        load[chosen] += 1
        pods.report(chosen, LoadReport(running=load[chosen]), now=number / 1000)
        running.append((pods, chosen))
        if len(running) > 40:
            ending, pod = running.pop(draw.randrange(len(running)))
            load[pod] -= 1
            ending.end(pod, Outcome(pace_s=0.1, report=LoadReport(running=load[pod])), number / 1000)
            worst = max(worst, max(load.values()) - min(load[name] for name in names))
    assert worst <= 12, "a random choice differs by more than 20"
