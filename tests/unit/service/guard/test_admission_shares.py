"""One client's requests do not lock out the others: what of a stage's limits a client may use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from omni_proto.runtime.limits import Client
from omni_stage.errors import ByteBudgetExceededError, TooManyRequestsError
from omni_stage.service.guard.admission import OTHERS_S, Admission

A, B = Client("10.0.0.1"), Client("10.0.0.2")
GATEWAY = "10.0.0.9"


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    """Monotonic seconds, at 0."""
    return _Clock()


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Holds requests until the test ends."""
    with ExitStack() as stack:
        yield stack


def _fill(admission: Admission, held: ExitStack, client: Client | None, size: int = 0) -> int:
    """Returns how many requests a client gets until it is refused."""
    for count in range(1000):
        try:
            held.enter_context(admission.admit(size, client=client))
        except (TooManyRequestsError, ByteBudgetExceededError):
            return count
    return 1000


def test_a_client_that_is_alone_uses_everything(clock: _Clock, held: ExitStack) -> None:
    assert _fill(Admission(64, 1000, clock), held, A) == 64


@pytest.mark.parametrize("maximum", [8, 9, 16, 64, 1000])
def test_the_last_eighth_is_for_others_while_they_call(clock: _Clock, held: ExitStack, maximum: int) -> None:
    admission = Admission(maximum, 1000, clock)
    with admission.admit(0, client=B):
        pass
    assert _fill(admission, held, A) == maximum - maximum // 8
    assert _fill(admission, held, B) == maximum // 8


def test_others_are_forgotten_after_a_while(clock: _Clock, held: ExitStack) -> None:
    admission = Admission(16, 1000, clock)
    with admission.admit(0, client=B):
        pass
    clock.now = OTHERS_S + 1
    assert _fill(admission, held, A) == 16


def test_a_refused_client_gets_the_next_places(clock: _Clock) -> None:
    """A client took everything while it was alone. As soon as requests of its end, the other one is served."""
    admission = Admission(16, 1000, clock)
    requests = [admission.admit(0, client=A) for _ in range(16)]
    for request in requests:
        request.__enter__()
    with pytest.raises(TooManyRequestsError), admission.admit(0, client=B):
        pass
    requests.pop().__exit__(None, None, None)
    with pytest.raises(TooManyRequestsError, match="last eighth"), admission.admit(0, client=A):
        pass
    with admission.admit(0, client=B):
        pass
    for request in requests:
        request.__exit__(None, None, None)


def test_users_of_a_gateway_share_likewise(clock: _Clock, held: ExitStack) -> None:
    """The gateway has one address; it names its users."""
    admission = Admission(16, 1000, clock)
    with admission.admit(0, client=Client(GATEWAY, "b")):
        pass
    assert _fill(admission, held, Client(GATEWAY, "a")) == 14
    assert _fill(admission, held, Client(GATEWAY, "b")) == 2


def test_a_client_that_invents_users_gains_nothing_over_another_address(clock: _Clock, held: ExitStack) -> None:
    admission = Admission(16, 1000, clock)
    with admission.admit(0, client=B):
        pass
    taken = sum(_fill_one(admission, held, Client(A.address, str(number))) for number in range(32))
    assert taken == 14
    assert _fill(admission, held, B) == 2


def _fill_one(admission: Admission, held: ExitStack, client: Client) -> bool:
    try:
        held.enter_context(admission.admit(0, client=client))
    except TooManyRequestsError:
        return False
    return True


def test_bytes_are_shared_likewise(clock: _Clock, held: ExitStack) -> None:
    admission = Admission(1000, 800, clock)
    with admission.admit(10, client=B):
        pass
    assert _fill(admission, held, A, 100) == 7
    with admission.admit(100, client=B):
        pass


def test_a_stage_acts_for_many_clients(clock: _Clock, held: ExitStack) -> None:
    admission = Admission(16, 1000, clock)
    assert _fill(admission, held, None) == 16


def test_nothing_is_kept_of_a_client_without_requests(clock: _Clock) -> None:
    """Names of clients are theirs to invent."""
    admission = Admission(16, 1000, clock)
    for number in range(100):
        with admission.admit(5, client=Client("a", str(number))):
            pass
    assert not admission._requests_of
    assert not admission._bytes_of


def _enter(admission: Admission, held: ExitStack, client: Client | None) -> float:
    return held.enter_context(admission.admit(0, client=client))


def test_a_request_is_later_by_a_second_for_each_that_its_client_holds(clock: _Clock, held: ExitStack) -> None:
    """A second client does not wait for the first one's fifty; a stage's requests and lone ones are not late."""
    admission = Admission(64, 1000, clock)
    assert [_enter(admission, held, A) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert _enter(admission, held, B) == 0.0
    assert _enter(admission, held, None) == 0.0


def test_the_requests_of_a_client_keep_their_order(clock: _Clock) -> None:
    """Also when some have ended since: a later request never counts as earlier than one before it."""
    admission = Admission(64, 1000, clock)
    chance, running, newest = random.Random(3), [], -1.0
    for _ in range(2000):
        clock.now += chance.expovariate(2.0)
        if running and chance.random() < 0.5:
            running.pop(chance.randrange(len(running))).close()
            continue
        if len(running) == 60:
            continue
        request = ExitStack()
        at = clock.now + request.enter_context(admission.admit(0, client=A))
        assert not running or at >= newest
        assert clock.now <= at <= clock.now + 60
        newest, running = at, [*running, request]
    for request in running:
        request.close()
    assert not admission._newest


def test_users_count_each_for_itself_and_a_little_for_all(clock: _Clock, held: ExitStack) -> None:
    """A client that names a new user for each call is late too, a sixteenth as much."""
    admission = Admission(640, 1000, clock)
    late = [_enter(admission, held, Client(GATEWAY, str(number))) for number in range(40)]
    assert late == [float(number // 16) for number in range(40)]
    assert _enter(admission, held, Client(GATEWAY, "0")) == 2.0
