"""The queue of searches, their events and artifacts: on both databases, from many threads, and across SIGKILL."""

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import StatementError

from autotune.core.errors import InvalidRequest, StorageFailed
from autotune.service import store as store_module
from autotune.service import tables
from autotune.service.accounts import Accounts
from autotune.service.records import (
    CANCELLED,
    DONE,
    ENDED,
    FAILED,
    MOST_ATTEMPTS,
    QUEUED,
    RUNNING,
    Conflict,
    KeyReused,
    LimitReached,
    Search,
)
from autotune.service.store import Store
from autotune.service.tables import writing
from tests.probe.processes import bounded

REQUEST = {"model": "bert-mini", "global_batch_size": 8}
LATER = timedelta(hours=1)
LIMITS = {"interruptions": 2, "restarts": 3}
"""In place of the real ones, which chance does not reach."""


@pytest.fixture
def changed() -> list[str]:
    """Ids that the store announced."""
    return []


@pytest.fixture
def store(engine: Engine, changed: list[str]) -> Store:
    return Store(engine, changed.append)


def submitted(store: Store, owner: str = "anna", name: str = "a search", **options: Any) -> Search:
    asked = {key: options.pop(key) for key in ("device", "devices", "card", "timeout") if key in options}
    return store.submit(owner, name, {**REQUEST, "device": "auto", **asked}, **options)[0]


def started(store: Store, **options: Any) -> Search:
    search = submitted(store, **options)
    claimed = store.claim(["cpu"], most_of_user=1000)
    assert claimed is not None
    assert claimed.id == search.id
    return claimed


def ended(store: Store, state: str = DONE, **options: Any) -> Search:
    search = started(store, **options)
    assert store.end(search.id, search.attempt, state)
    return current(store, search)


def current(store: Store, search: Search) -> Search:
    found = store.read(search.id)
    assert found is not None
    return found


def trial(number: int, **body: Any) -> dict[str, Any]:
    return {"key": f"trial:{number}", "kind": "trial", "body": {"number": number} | body}


def at_once(threads: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(0)`, `work(1)`, … return, started by as many threads at the same time."""
    barrier = Barrier(threads, timeout=60)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are sent to the database, with their values."""
    seen: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, values: Any, context: Any, many: bool) -> None:
        seen.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


# Submitting -----------------------------------------------------------------------------------------------------


def test_a_submitted_search_is_queued_and_read_back_as_it_was_returned(store: Store, changed: list[str]) -> None:
    before = datetime.now(UTC)
    search, new = store.submit("anna", "größer ✓", REQUEST | {"device": "cuda:1"}, priority=-3)
    assert new
    assert store.read(search.id) == search
    assert (search.owner, search.name, search.model, search.device) == ("anna", "größer ✓", "bert-mini", "cuda:1")
    assert (search.state, search.attempt, search.version, search.priority) == (QUEUED, 0, 1, -3)
    assert search.request == REQUEST | {"device": "cuda:1"}
    assert before - timedelta(seconds=1) < search.created_at <= datetime.now(UTC)
    assert search.result is search.problem is search.progress is search.cancel is search.lent is search.pid is None
    assert changed == [search.id]


def test_ids_are_uuids_of_version_7_that_sort_by_time(store: Store) -> None:
    ids = [submitted(store).id for _ in range(10)]
    assert ids == sorted(ids)
    assert {uuid.UUID(search_id).version for search_id in ids} == {7}
    assert {uuid.UUID(search_id).variant for search_id in ids} == {uuid.RFC_4122}
    created = current(store, submitted(store))
    milliseconds = int(created.id[:12], 16)
    assert abs(milliseconds - created.created_at.timestamp() * 1000) < 2


def test_the_same_key_and_request_give_the_same_search(store: Store, changed: list[str]) -> None:
    first, new = store.submit("anna", "first", REQUEST, idempotency_key="k")
    claimed = store.claim(["cpu"])
    del changed[:]
    again, new_again = store.submit("anna", "first", dict(reversed(REQUEST.items())), idempotency_key="k")
    assert (new, new_again) == (True, False)
    assert again == claimed
    assert again.id == first.id
    assert changed == []


@pytest.mark.parametrize("other", [{"name": "second"}, {"priority": -1}, {"request": REQUEST | {"seed": 1}}])
def test_a_key_with_another_request_is_refused(store: Store, other: dict[str, Any]) -> None:
    first = {"name": "first", "request": REQUEST, "idempotency_key": "k"}
    store.submit("anna", **first)
    with pytest.raises(KeyReused, match="another request"):
        store.submit("anna", **first | other)


def test_eight_threads_with_one_key_make_one_search(engine: Engine, open_engine: Callable[[], Engine]) -> None:
    stores = [Store(engine), Store(open_engine())]
    answers = at_once(8, lambda number: stores[number % 2].submit("anna", "first", REQUEST, idempotency_key="k"))
    assert len({search.id for search, _ in answers}) == 1
    assert sorted(new for _, new in answers) == [False] * 7 + [True]
    assert len(stores[0].list()[0]) == 1


def test_no_more_than_the_limits_are_queued_however_many_submit_at_once(store: Store) -> None:
    def submit(number: int) -> bool:
        try:
            store.submit(f"user{number % 2}", "x", REQUEST, most_of_user=3, most=5)
        except LimitReached:
            return False
        return True

    assert sum(at_once(8, submit)) == 5


def test_the_limits_count_what_is_queued_only(store: Store) -> None:
    started(store)
    ended(store)
    for _ in range(2):
        submitted(store, most_of_user=2)
    with pytest.raises(LimitReached, match="anna has 2 searches in the queue"):
        submitted(store, most_of_user=2)
    submitted(store, "ben", most_of_user=2, most=3)
    with pytest.raises(LimitReached, match="There are 3 searches in the queue"):
        submitted(store, "ben", most_of_user=2, most=3)


def test_what_is_resumed_counts_as_what_is_submitted(store: Store) -> None:
    old, other = submitted(store), submitted(store, "ben")
    for search in (old, other):
        store.cancel(search.id, now=False)
    for _ in range(2):
        submitted(store, most_of_user=2)
    with pytest.raises(LimitReached, match="anna has 2 searches in the queue"):
        store.resume(old.id, most_of_user=2)
    with pytest.raises(LimitReached, match="There are 2 searches in the queue"):
        store.resume(other.id, most=2)
    assert store.resume(other.id).state == QUEUED


def audited(engine: Engine, action: str, age: timedelta, user: str | None = None) -> None:
    """An entry of the audit of this age."""
    with engine.begin() as connection:
        values = {"at": datetime.now(UTC) - age, "user": user, "action": action, "outcome": "done"}
        connection.execute(tables.audit.insert().values(**values))


def test_a_replay_is_answered_though_the_queue_is_full(store: Store) -> None:
    search = submitted(store, idempotency_key="k")
    assert submitted(store, idempotency_key="k", most=1, most_of_user=1) == search


def test_a_text_that_the_database_cannot_hold_is_refused_or_kept(store: Store, engine: Engine) -> None:
    if engine.dialect.name == "postgresql":
        with pytest.raises(InvalidRequest, match="cannot be stored"):
            store.read("\0")
    else:
        assert store.read("\0") is None


# Every acknowledged submit is there after SIGKILL -----------------------------------------------------------------

SUBMITTER = """
import itertools, sys
from autotune.service.store import Store
from autotune.service.tables import open_database
store = Store(open_database(sys.argv[1]))
for number in itertools.count():
    search, _ = store.submit("anna", str(number), {"model": "bert-mini"}, most_of_user=10**9, most=10**9)
    print(search.id, flush=True)
"""


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_every_acknowledged_search_is_there_after_sigkill(
    kills: int, database_url: str, open_engine: Callable[[], Engine]
) -> None:
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", SUBMITTER, database_url],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(tables.__file__).parents[2])},
        )
        with bounded(child):
            assert child.stdout is not None
            acknowledged = [child.stdout.readline().strip() for _ in range(20)]
            child.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
        assert child.returncode == -signal.SIGKILL
        store = Store(open_engine())
        for search_id in acknowledged:
            search = store.read(search_id)
            assert search is not None
            assert search.state == QUEUED
            assert [event.key for event in store.events(search_id)] == ["state:0:queued"]


def test_a_database_that_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    engine = tables.open_database(f"sqlite:///{tmp_path}/autotune.db")
    store = Store(engine)
    engine.dispose()
    for path in tmp_path.glob("autotune.db*"):
        path.unlink()
    with pytest.raises(StorageFailed, match=r"cannot be used: no such table"):
        store.count()
    engine.dispose()


# Lists ----------------------------------------------------------------------------------------------------------


def test_a_list_is_newest_first_and_without_what_is_long(store: Store) -> None:
    first, second = submitted(store), submitted(store, "ben")
    running = store.claim(["cpu"])
    assert running is not None
    store.end(first.id, 1, DONE, headline="1.5 times as fast", result={"best": 1})
    page, cursor = store.list()
    assert [search.id for search in page] == [second.id, first.id]
    assert cursor is None
    assert page[1].headline == "1.5 times as fast"
    assert [(search.request, search.result) for search in page] == [({}, None)] * 2


@pytest.mark.parametrize("number", [0, 1, 6, 7, 8, 14])
def test_pages_hold_everything_once_whatever_is_submitted_meanwhile(store: Store, number: int) -> None:
    before = {submitted(store, most_of_user=1000).id for _ in range(number)}
    seen: list[str] = []
    cursor = None
    for _ in range(number + 1):
        page, cursor = store.list(limit=7, cursor=cursor)
        seen += [search.id for search in page]
        submitted(store, most_of_user=1000)
        if cursor is None:
            break
    assert len(seen) == len({*seen}) == number
    assert {*seen} == before


def test_lists_are_filtered_by_state_owner_and_model(store: Store) -> None:
    running, queued = started(store), submitted(store, "ben")
    other, _ = store.submit("ben", "other", {"model": "gpt2-mini"})

    def ids(**conditions: str) -> list[str]:
        return [search.id for search in store.list(**conditions)[0]]

    assert ids(state=RUNNING) == [running.id]
    assert ids(owner="ben") == [other.id, queued.id]
    assert ids(model="bert-mini") == [queued.id, running.id]
    assert ids(owner="ben", model="bert-mini", state=QUEUED) == [queued.id]
    assert ids(owner="carl") == []


@pytest.mark.parametrize("cursor", ["", "x", "\0" * 32, "A" * 32, "0" * 31, "ä"])
def test_a_cursor_that_no_page_gave_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        store.list(cursor=cursor)


def test_a_cursor_is_good_after_its_search_was_deleted(store: Store) -> None:
    first, second = ended(store), ended(store)
    _, cursor = store.list(limit=1)
    store.delete(second.id)
    assert [search.id for search in store.list(limit=1, cursor=cursor)[0]] == [first.id]


@pytest.mark.parametrize("conditions", [{}, {"state": DONE}, {"owner": "user3"}, {"cursor": "0193585d1" + "0" * 23}])
def test_a_page_of_ten_thousand_searches_is_one_query_of_an_index(
    engine: Engine, store: Store, conditions: dict[str, Any]
) -> None:
    now = datetime.now(UTC)
    common = {
        "name": "x",
        "model": "m",
        "device": "auto",
        "priority": 0,
        "attempt": 0,
        "interruptions": 0,
        "restarts": 0,
        "version": 1,
    }
    common |= {"created_at": now, "request_sha256": "", "request": {"model": "m", "filler": "x" * 500}}
    states = (QUEUED, RUNNING, *ENDED)
    rows = [
        common | {"id": f"0193585d{number:024x}", "owner": f"user{number % 7}", "state": states[number % 6]}
        for number in range(10_000)
    ]
    with engine.begin() as connection:
        connection.execute(tables.searches.insert(), rows)
        connection.execute(text("ANALYZE"))
    with statements(engine) as seen:
        page, _ = store.list(**conditions)
    assert page
    (statement, values) = next(iter(seen[1:] if engine.dialect.name == "sqlite" else seen))
    assert len([words for words, _ in seen if words.startswith("SELECT")]) == 1
    assert "searches.request" not in statement
    assert "searches.result" not in statement
    with engine.connect() as connection:
        explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
        plan = "\n".join(str(row[-1]) for row in connection.exec_driver_sql(explain + statement, values))
    assert "USING INDEX" in plan or "Index Scan" in plan, plan
    assert not [word for word in ("Seq Scan", "Sort", "TEMP B-TREE") if word in plan], plan


# The queue ------------------------------------------------------------------------------------------------------


def test_a_claimed_search_runs_its_next_attempt_on_the_device(store: Store, changed: list[str]) -> None:
    search = submitted(store)
    del changed[:]
    claimed = store.claim(["cpu"])
    assert claimed == current(store, search)
    assert (claimed.state, claimed.attempt, claimed.lent, claimed.version) == (RUNNING, 1, "cpu", 2)
    assert claimed.started_at is not None
    assert store.running() == [claimed]
    assert changed == [search.id]


@pytest.mark.parametrize(
    ("wish", "free", "lent"),
    [
        ("auto", ["cuda:0", "cpu"], "cuda:0"),
        ("auto", ["cpu"], "cpu"),
        ("auto", [], None),
        ("cpu", ["cuda:0", "cpu"], "cpu"),
        ("cpu", ["cuda:0"], None),
        ("cuda", ["cpu", "cuda:3"], "cuda:3"),
        ("cuda", ["cpu"], None),
        ("cuda:1", ["cuda:0", "cuda:1"], "cuda:1"),
        ("cuda:1", ["cuda:0", "cuda:11"], None),
    ],
)
def test_a_search_gets_a_device_that_it_wants(store: Store, wish: str, free: list[str], lent: str | None) -> None:
    submitted(store, device=wish)
    claimed = store.claim(free)
    assert (claimed and claimed.lent) == lent


def test_what_a_server_with_other_devices_queued_fails_with_the_reason_and_can_be_resumed(store: Store) -> None:
    fits, two, other = submitted(store), submitted(store, devices=2), submitted(store, device="cuda:7")
    assert store.fail_unserved({"cuda:0": "L4"}) == [two.id, other.id]
    assert current(store, fits).state == QUEUED
    problem = current(store, two).problem
    assert problem is not None
    assert "1 device(s)" in problem["message"]
    assert store.resume(two.id).state == QUEUED
    assert store.fail_unserved({"cuda:0": "L4", "cuda:1": "L4"}) == []


CARDS = {"cuda:0": "H200", "cuda:1": "L4", "cuda:2": "H200", "cpu": "a processor"}


@pytest.mark.parametrize(
    ("wanted", "free", "lent"),
    [
        ({"devices": 2}, [*CARDS], "cuda:0,cuda:2"),
        ({"devices": 2, "device": "cuda"}, ["cuda:0", "cuda:1"], None),  # not alike
        ({"devices": "all", "card": "h200"}, [*CARDS], "cuda:0,cuda:2"),
        ({"devices": "all", "card": "h200"}, ["cuda:1", "cuda:2"], None),
        ({"devices": "2", "device": "cpu"}, ["cuda:0", "cpu"], "cpu"),
        ({"card": "L4"}, [*CARDS], "cuda:1"),
        ({"card": "L4"}, ["cuda:0"], None),
    ],
)
def test_a_search_gets_as_many_alike_devices_as_it_wants(
    store: Store, wanted: dict[str, Any], free: list[str], lent: str | None
) -> None:
    submitted(store, **wanted)
    claimed = store.claim(free, cards=CARDS)
    assert (claimed and claimed.lent) == lent


def test_none_gets_devices_that_one_before_it_waits_for(store: Store) -> None:
    wide, small, other = submitted(store, devices=2, device="cuda"), submitted(store), submitted(store, card="L4")
    assert (claimed := store.claim(["cuda:2", "cuda:1"], cards=CARDS)) is not None
    assert (claimed.id, claimed.lent) == (small.id, "cuda:1")
    assert store.claim(["cuda:2"], 9, CARDS) is None
    assert (claimed := store.claim(["cuda:2", "cuda:1"], 9, CARDS)) is not None
    assert claimed.id == other.id
    assert (claimed := store.claim(["cuda:0", "cuda:2"], 9, CARDS)) is not None
    assert (claimed.id, claimed.lent) == (wide.id, "cuda:0,cuda:2")


def test_a_search_that_ends_in_time_uses_what_one_before_it_waits_for(store: Store) -> None:
    running = submitted(store, device="cuda:0", timeout="100s")
    assert store.claim(["cuda:0"], cards=CARDS) is not None
    wide = submitted(store, devices=2, device="cuda")
    long, short = submitted(store, timeout="10m"), submitted(store, timeout=30)
    claimed = store.claim(["cuda:2"], 9, CARDS)
    assert claimed is not None
    assert claimed.id == short.id
    store.add_events(running.id, 1, [{"key": "a", "kind": "progress", "body": {"seconds_to_go": 3000.0}}])
    store.end(short.id, 1, DONE)
    assert (claimed := store.claim(["cuda:2"], 9, CARDS)) is not None
    assert claimed.id == long.id
    store.end(long.id, 1, DONE)
    store.end(running.id, 1, DONE)
    assert (claimed := store.claim(["cuda:0", "cuda:2"], 9, CARDS)) is not None
    assert claimed.id == wide.id


def test_a_search_is_expected_to_take_as_long_as_earlier_ones_of_its_model(store: Store, engine: Engine) -> None:
    earlier = ended(store)
    submitted(store, device="cuda:0", timeout="100s")
    assert store.claim(["cuda:0"], cards=CARDS) is not None
    submitted(store, devices=2, device="cuda")
    narrow = submitted(store)
    for seconds, passes in ((200, False), (20, True)):
        with writing(engine) as connection:
            begun = datetime.now(UTC) - timedelta(seconds=seconds)
            change = tables.searches.update().where(tables.searches.c.id == earlier.id)
            connection.execute(change.values(started_at=begun, ended_at=datetime.now(UTC)))
        assert (store.claim(["cuda:2"], 9, CARDS) is not None) == passes
    assert current(store, narrow).state == RUNNING


def test_a_token_has_no_more_devices_than_it_may(store: Store, engine: Engine) -> None:
    token, _ = Accounts(engine).create("anna", "submitter", None, "a test", most_devices=2)
    own = [submitted(store, token_id=token.id, device="cuda") for _ in range(3)]
    cards = {f"cuda:{index}": "L4" for index in range(4)}
    for search, name in zip(own[:2], cards, strict=False):
        claimed = store.claim([name, "cuda:3"], 9, cards)
        assert claimed is not None
        assert claimed.id == search.id
    assert store.claim(["cuda:2", "cuda:3"], 9, cards) is None
    store.end(own[0].id, 1, DONE)
    claimed = store.claim(["cuda:2", "cuda:3"], 9, cards)
    assert claimed is not None
    assert claimed.id == own[2].id


def test_measurements_whose_files_are_on_another_machine_are_set_aside(store: Store) -> None:
    search = submitted(store)
    store.claim(["cpu"])
    begun = {"key": "preparing:1:1", "kind": "preparing", "body": {}}
    trial = {"key": "trial:0", "kind": "trial", "body": {"number": 0}}
    assert store.add_events(search.id, 1, [begun, trial]) == 2
    store.requeue(search.id, 1, "The server was started again.")
    store.claim(["cpu"])
    assert not store.begin_again(search.id, 2, last_here=1)
    assert store.begin_again(search.id, 2, last_here=0)
    assert store.add_events(search.id, 2, [trial]) == 1
    kinds = [event.kind for event in store.events(search.id) if event.kind != "state"]
    assert kinds == ["preparing", "lost", "trial"]
    assert [event.seq for event in store.events(search.id)] == [1, 2, 3, 4, 5, 6, 7]


def test_no_two_claims_give_the_same_search(engine: Engine, open_engine: Callable[[], Engine]) -> None:
    stores = [Store(engine), Store(open_engine())]
    ids = {submitted(stores[0], most_of_user=1000).id for _ in range(20)}

    def claim(number: int) -> list[str]:
        claimed: list[str] = []
        while search := stores[number % 2].claim(["cpu"], most_of_user=1000):
            claimed.append(search.id)
        return claimed

    claimed = [search_id for some in at_once(8, claim) for search_id in some]
    assert len(claimed) == 20
    assert {*claimed} == ids


def test_claims_at_once_keep_to_what_a_user_may_run(store: Store) -> None:
    for _ in range(10):
        submitted(store)
    claimed = at_once(8, lambda _: store.claim(["cpu"], most_of_user=2))
    assert len([search for search in claimed if search]) == 2


class Queue(RuleBasedStateMachine):
    """The store and what it should hold: id -> fields of the search."""

    store: Store
    changed: list[str]
    searches = Bundle("searches")

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, dict[str, Any]] = {}
        self.changes: list[str] = []
        with self.store._engine.begin() as connection:
            connection.execute(tables.searches.delete())

    def change(self, search: str, **fields: Any) -> None:
        self.rows[search] |= {"version": self.rows[search]["version"] + 1, **fields}
        self.changes.append(search)

    def attempt(self, search: str, late: bool) -> tuple[int, bool]:
        """(number of an attempt, whether it is running)."""
        row = self.rows[search]
        return row["attempt"] - late, row["state"] == RUNNING and not late

    @rule(target=searches, owner=st.sampled_from(["anna", "ben"]), priority=st.integers(-1, 1))
    def submit(self, owner: str, priority: int) -> str:
        search = submitted(self.store, owner, priority=priority, most_of_user=100).id
        counters = dict.fromkeys(("attempt", "interruptions", "restarts", "version"), 0)
        self.rows[search] = {"owner": owner, "priority": priority, "state": QUEUED, "cancel": None, **counters}
        self.change(search)
        return search

    @rule(most=st.integers(1, 2))
    def claim(self, most: int) -> None:
        queue = [search for search, row in self.rows.items() if row["state"] == QUEUED]
        queue.sort(key=lambda search: (-self.rows[search]["priority"], search))
        positions = [self.store.position(found) for search in queue if (found := self.store.read(search))]
        assert positions == [*range(1, len(queue) + 1)]
        running = [row["owner"] for row in self.rows.values() if row["state"] == RUNNING]
        following = next((search for search in queue if running.count(self.rows[search]["owner"]) < most), None)
        claimed = self.store.claim(["cpu"], most)
        assert (claimed and claimed.id) == following
        if following:
            self.change(following, state=RUNNING, attempt=self.rows[following]["attempt"] + 1)

    @rule(search=searches, late=st.booleans())
    def measure(self, search: str, late: bool) -> None:
        attempt, is_running = self.attempt(search, late)
        assert self.store.add_events(search, attempt, [trial(self.rows[search]["version"])]) == is_running
        if is_running:
            self.change(search, interruptions=0, restarts=0)

    @rule(search=searches, late=st.booleans(), counter=st.sampled_from([None, *LIMITS]))
    def requeue(self, search: str, late: bool, counter: str | None) -> None:
        attempt, is_running = self.attempt(search, late)
        self.store.requeue(search, attempt, "it crashed", counter=counter)
        if is_running:
            row = self.rows[search]
            counted = {counter: row[counter] + 1} if counter else {}
            too_often = any(number >= LIMITS[name] for name, number in counted.items())
            self.change(search, state=CANCELLED if row["cancel"] else FAILED if too_often else QUEUED, **counted)

    @rule(search=searches, late=st.booleans(), state=st.sampled_from(ENDED))
    def end(self, search: str, late: bool, state: str) -> None:
        attempt, is_running = self.attempt(search, late)
        assert self.store.end(search, attempt, state) == is_running
        if is_running:
            self.change(search, state=state)

    @rule(search=searches, now=st.booleans())
    def cancel(self, search: str, now: bool) -> None:
        self.store.cancel(search, now)
        row = self.rows[search]
        wish = "now" if now else row["cancel"] or "patient"
        if row["state"] == QUEUED:
            self.change(search, state=CANCELLED)
        elif row["state"] == RUNNING and wish != row["cancel"]:
            self.change(search, cancel=wish)

    @rule(search=searches)
    def resume(self, search: str) -> None:
        if self.rows[search]["state"] in (CANCELLED, FAILED):
            self.store.resume(search, most_of_user=100)
            self.change(search, state=QUEUED, cancel=None, interruptions=0, restarts=0)
        else:
            with pytest.raises(Conflict, match=f"The search is {self.rows[search]['state']}"):
                self.store.resume(search)

    @rule(search=consumes(searches))
    def delete(self, search: str) -> None:
        if self.rows[search]["state"] in ENDED:
            self.store.delete(search)
            del self.rows[search]
            self.changes.append(search)
        else:
            with pytest.raises(Conflict, match="Cancel it first"):
                self.store.delete(search)

    @invariant()
    def is_as_it_should_be(self) -> None:
        found = {search.id: vars(search) for search in self.store.list(limit=100)[0]}
        assert [*found] == sorted(self.rows, reverse=True)
        for search, row in self.rows.items():
            assert {name: found[search][name] for name in row} == row
            assert (found[search]["ended_at"] is not None) == (row["state"] in ENDED)
            states = [event.body["state"] for event in self.store.events(search) if event.kind == "state"]
            assert states[-1] == row["state"]
        counts = Counter(row["state"] for row in self.rows.values())
        assert self.store.count() == {state: counts[state] for state in (QUEUED, RUNNING, *ENDED)}
        assert self.changed == self.changes
        self.changed.clear()
        self.changes.clear()


@pytest.mark.parametrize("sequences", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_whatever_becomes_of_searches_the_queue_is_in_order(
    sequences: int, store: Store, changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_MOST", LIMITS)
    queue = type("Queue", (Queue,), {"store": store, "changed": changed})
    run_state_machine_as_test(queue, settings=settings(max_examples=sequences, stateful_step_count=25, deadline=None))


# Attempts -------------------------------------------------------------------------------------------------------


def test_the_process_of_an_attempt_is_recorded_while_it_runs(store: Store) -> None:
    search = started(store)
    assert store.started(search.id, 1, 4711, 1763892000.25)
    running = current(store, search)
    assert (running.pid, running.pid_started) == (4711, 1763892000.25)
    store.stopped(search.id, 1)
    assert current(store, search).pid is None
    assert not store.started(search.id, 2, 1, 1.0)
    assert store.end(search.id, 1, DONE)
    assert not store.started(search.id, 1, 1, 1.0)
    assert (current(store, search).pid, current(store, search).pid_started) == (None, None)


def test_an_interrupted_search_is_the_next_again(store: Store, changed: list[str]) -> None:
    first = started(store)
    submitted(store)
    del changed[:]
    queued = store.requeue(first.id, 1, "the server ended")
    assert (queued.state, queued.attempt, queued.interruptions, queued.lent, queued.pid) == (QUEUED, 1, 1, None, None)
    assert changed == [first.id]
    again = store.claim(["cpu"])
    assert again is not None
    assert (again.id, again.attempt, again.started_at) == (first.id, 2, first.started_at)
    assert [event.key for event in store.events(first.id)] == [
        "state:0:queued", "state:1:running", "state:1:queued", "state:2:running",
    ]  # fmt: skip
    assert store.events(first.id)[2].body == {"state": "queued", "attempt": 1, "reason": "the server ended"}


def test_a_search_that_waits_is_claimed_after_its_time(store: Store, engine: Engine) -> None:
    first = started(store)
    store.requeue(first.id, 1, "it crashed", delay_s=3600)
    assert store.claim(["cpu"]) is None
    with engine.begin() as connection:
        connection.execute(tables.searches.update().values(not_before=datetime.now(UTC)))
    claimed = store.claim(["cpu"])
    assert claimed is not None
    assert claimed.not_before is None


def test_a_search_that_is_interrupted_too_often_has_failed(store: Store) -> None:
    search = submitted(store)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        assert current(store, search).state == QUEUED
        store.claim(["cpu"])
        store.requeue(search.id, attempt, "it crashed")
    failed = current(store, search)
    assert (failed.state, failed.attempt) == (FAILED, MOST_ATTEMPTS)
    assert failed.problem is not None
    assert failed.problem["message"] == "The search was interrupted 5 times, at last: it crashed"
    assert failed.ended_at is not None
    assert store.events(search.id)[-1].body["reason"] == "it crashed"


def test_a_stale_attempt_changes_nothing(store: Store, changed: list[str]) -> None:
    search = started(store)
    store.requeue(search.id, 1, "it crashed")
    second = store.claim(["cpu"])
    assert second is not None
    del changed[:]
    assert not store.end(search.id, 1, DONE, headline="stale", artifacts={"summary.md": b"stale"})
    assert store.requeue(search.id, 1, "stale") == second
    assert store.add_events(search.id, 1, [trial(0)]) == 0
    assert current(store, search) == second
    assert store.artifacts(search.id) == []
    assert changed == []


def test_a_search_ends_once_with_its_result_and_files(store: Store, changed: list[str]) -> None:
    search = started(store)
    del changed[:]
    report = {
        "summary.md": b"# Best",
        "report.html": b"<html>",
        "trials.parquet": b"PAR1\0\xff",
        "study.tar.gz": b"\x1f\x8b",
    }
    result = {"best": 3, "speedup": 1.5}
    ends = at_once(
        4,
        lambda number: store.end(
            search.id, 1, DONE, headline="1.5 times as fast", statement="stopped", result=result, artifacts=report
        ),
    )
    assert sorted(ends) == [False, False, False, True]
    over = current(store, search)
    assert (over.state, over.headline, over.statement, over.result) == (DONE, "1.5 times as fast", "stopped", result)
    assert over.ended_at is not None
    assert over.lent == "cpu"
    assert changed == [search.id]
    files = store.artifacts(search.id)
    assert [(file.name, file.media_type, file.size) for file in files] == [
        ("report.html", "text/html", 6),
        ("study.tar.gz", "application/gzip", 2),
        ("summary.md", "text/markdown", 6),
        ("trials.parquet", "application/vnd.apache.parquet", 6),
    ]
    for file in files:
        assert file.sha256 == sha256(report[file.name]).hexdigest()
        assert store.artifact(search.id, file.name) == (file, report[file.name])
    assert store.artifact(search.id, "none.md") is None
    last = store.events(search.id)[-1]
    assert (last.key, last.kind) == ("state:1:done", "state")
    assert last.body == {"state": "done", "attempt": 1, "headline": "1.5 times as fast"}


def test_a_result_and_its_files_are_visible_together_or_not_at_all(store: Store) -> None:
    search = started(store)
    with pytest.raises((TypeError, StatementError), match="JSON serializable"):
        store.end(search.id, 1, DONE, result={"best": object()}, artifacts={"summary.md": b"#"})
    assert current(store, search) == search
    assert store.artifacts(search.id) == []
    assert store.events(search.id)[-1].key == "state:1:running"


def test_a_failure_says_why(store: Store) -> None:
    search = started(store)
    problem = {"type": "SearchFailed", "message": "The baseline crashed.", "advice": "Read its log."}
    store.end(search.id, 1, FAILED, problem=problem)
    assert current(store, search).problem == problem
    assert store.events(search.id)[-1].body["reason"] == "The baseline crashed."


# Cancel, resume, delete -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [CANCELLED, FAILED])
def test_a_resumed_search_is_queued_with_all_its_attempts_before_it(store: Store, state: str) -> None:
    search = started(store)
    store.cancel(search.id, now=False)
    store.add_events(search.id, 1, [trial(0), trial(1)])
    store.end(
        search.id, 1, state, headline="so far", result={"best": 1}, problem={"message": "no"}, artifacts={"a.md": b"1"}
    )
    resumed = store.resume(search.id)
    assert (resumed.state, resumed.cancel, resumed.ended_at, resumed.interruptions) == (QUEUED, None, None, 0)
    assert resumed.headline is resumed.result is resumed.problem is None
    claimed = store.claim(["cpu"])
    assert claimed is not None
    assert claimed.attempt == 2  # a runner that is still there cannot pass for the new one
    assert store.add_events(search.id, 2, [trial(0), trial(1), trial(2)]) == 1
    assert store.end(search.id, 2, DONE, artifacts={"a.md": b"2", "b.md": b"3"})
    contents = [store.artifact(search.id, file.name) for file in store.artifacts(search.id)]
    assert [content for _, content in filter(None, contents)] == [b"2", b"3"]


def test_files_of_an_earlier_answer_are_gone_once_there_is_another_one(store: Store) -> None:
    """It has no `best_training_arguments.json` if nothing is shown to be faster any more."""
    search = started(store)
    files = {"best_training_arguments.json": b"{}", "report.html": b"1"}
    store.end(search.id, 1, CANCELLED, artifacts=files)
    store.resume(search.id)
    assert store.claim(["cpu"]) is not None
    store.end(search.id, 2, FAILED)
    assert {file.name for file in store.artifacts(search.id)} == {*files}
    store.resume(search.id)
    assert store.claim(["cpu"]) is not None
    store.end(search.id, 3, DONE, artifacts={"report.html": b"2"})
    assert [file.name for file in store.artifacts(search.id)] == ["report.html"]


def test_a_state_that_repeats_has_events_of_its_own(store: Store) -> None:
    search = submitted(store)
    for _ in range(3):
        store.cancel(search.id, now=False)
        store.resume(search.id)
    keys = [event.key for event in store.events(search.id)]
    assert keys == [
        "state:0:queued", "state:0:cancelled", "state:0:queued:2", "state:0:cancelled:2", "state:0:queued:3",
        "state:0:cancelled:3", "state:0:queued:4",
    ]  # fmt: skip


def test_a_deleted_search_leaves_nothing(store: Store, engine: Engine, changed: list[str]) -> None:
    search, other = started(store), submitted(store)
    store.add_events(search.id, 1, [trial(0)])
    store.end(search.id, 1, DONE, artifacts={"summary.md": b"#"})
    del changed[:]
    store.delete(search.id)
    assert changed == [search.id]
    assert store.read(search.id) is None
    with engine.connect() as connection:
        left = {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in ("events", "artifacts")}
    assert left == {"events": 1, "artifacts": 0}
    assert store.read(other.id) == other
    for act in (store.delete, store.resume, lambda search_id: store.cancel(search_id, now=True)):
        with pytest.raises(Conflict, match="does not exist"):
            act(search.id)


# Events ---------------------------------------------------------------------------------------------------------


def test_events_are_numbered_and_the_last_is_the_progress(store: Store, changed: list[str]) -> None:
    search = started(store)
    del changed[:]
    assert store.add_events(search.id, 1, [trial(0), trial(1, best=1)]) == 2
    assert changed == [search.id]
    running = current(store, search)
    assert running.progress == {"number": 1, "best": 1}
    assert running.version == search.version + 1
    assert [(event.seq, event.key) for event in store.events(search.id)] == [
        (1, "state:0:queued"), (2, "state:1:running"), (3, "trial:0"), (4, "trial:1"),
    ]  # fmt: skip
    assert [event.seq for event in store.events(search.id, after=2)] == [3, 4]
    assert [event.seq for event in store.events(search.id, after=1, limit=2)] == [2, 3]


def test_an_event_that_comes_again_is_left_out(store: Store, changed: list[str]) -> None:
    search = started(store)
    assert store.add_events(search.id, 1, [trial(0), trial(0, late=True), trial(1)]) == 2
    before = current(store, search)
    del changed[:]
    assert store.add_events(search.id, 1, [trial(1), trial(0)]) == 0
    assert store.add_events(search.id, 1, []) == 0
    assert current(store, search) == before
    assert changed == []
    assert [event.body for event in store.events(search.id, after=2)] == [{"number": 0}, {"number": 1}]


def test_changes_are_the_states_of_all_searches_in_their_order(store: Store) -> None:
    assert store.last_change() == 0
    assert store.changes() == []
    first, second = started(store), submitted(store)
    seen = store.last_change()
    store.add_events(first.id, 1, [trial(0)])
    store.end(first.id, 1, DONE)
    store.cancel(second.id, now=False)
    assert [(event.search_id, event.body["state"]) for event in store.changes(after=seen)] == [
        (first.id, DONE),
        (second.id, CANCELLED),
    ]
    assert len(store.changes()) == 5
    assert store.changes(limit=1)[0].search_id == first.id


def test_an_id_of_a_deleted_event_is_not_given_again(store: Store) -> None:
    search = ended(store)
    last = store.last_change()
    store.delete(search.id)
    submitted(store)
    assert [event.id > last for event in store.changes()] == [True]


def test_old_searches_lose_their_events_and_keep_their_result(store: Store, engine: Engine) -> None:
    old, recent, running = ended(store), ended(store), started(store)
    with engine.begin() as connection:
        of_old = tables.searches.c.id == old.id
        connection.execute(tables.searches.update().where(of_old).values(ended_at=datetime.now(UTC) - LATER))
    forgotten = current(store, old)
    assert store.forget(datetime.now(UTC) - LATER / 2) == [old.id]
    assert store.events(old.id) == []
    assert current(store, old) == forgotten
    assert len(store.events(recent.id)) == 3
    assert len(store.events(running.id)) == 2


def test_old_entries_of_the_audit_and_what_was_cancelled_unstarted_go(store: Store, engine: Engine) -> None:
    unstarted, recent, begun = submitted(store), submitted(store), submitted(store)
    for search in (unstarted, recent):
        store.cancel(search.id, now=False)
    assert store.claim(["cpu"]) is not None
    store.end(begun.id, 1, CANCELLED)
    audited(engine, "old", LATER)
    audited(engine, "new", 0 * LATER)
    before = datetime.now(UTC) - LATER
    with engine.begin() as connection:
        old = tables.searches.c.id.in_([unstarted.id, begun.id])
        connection.execute(tables.searches.update().where(old).values(ended_at=before))
    assert store.forget(datetime.now(UTC) - LATER / 2) == [begun.id]
    assert store.read(unstarted.id) is None
    assert store.read(recent.id) is not None
    assert store.read(begun.id) is not None
    with engine.connect() as connection:
        assert [*connection.scalars(tables.sa.select(tables.audit.c.action))] == ["new"]
