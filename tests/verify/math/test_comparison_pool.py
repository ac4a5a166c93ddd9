"""A worker that hangs or dies costs the pair it held and nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from counterpoise.errors import PoiseError
from counterpoise.verify.math import comparison_pool
from counterpoise.verify.math.comparison_pool import ComparisonPool

SCRIPTED = "scripted_compare:compare"


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)  # the worker searches its owner's path
    pool = ComparisonPool(SCRIPTED, timeout_seconds=0.6, workers=2)
    yield pool
    pool.close()


def pids(pool):
    return {worker.process.pid for worker in pool._workers}


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_running(pid):
    """Whether the process is there and no zombie, which only its parent can clear away."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_faults_cost_one_pair_each_and_order_is_kept(pool):
    pairs = [("a", "a"), ("hang", ""), ("b", "a"), ("die", ""), ("raise", ""), ("print", "print")]
    outcomes = pool.run(pairs + [(str(k), "7") for k in range(12)])
    assert outcomes[:6] == ["equal", "timeout", "different", "crash", "crash", "equal"]
    assert [k for k, outcome in enumerate(outcomes[6:]) if outcome == "equal"] == [7]


def test_workers_are_reused_and_lazily_started(pool):
    assert pids(pool) == set()
    assert pool.run([]) == []
    assert pids(pool) == set()
    pool.run([("a", "a")])
    assert len(pids(pool)) == 1  # one pair needs one worker
    pool.run([("a", "a"), ("b", "b")])
    first = pids(pool)
    for _ in range(5):
        assert pool.run([("a", "a"), ("b", "c")]) == ["equal", "different"]
    assert pids(pool) == first


def test_what_stops_the_owner_costs_no_pair(pool):
    """Ctrl-C and some batch systems signal every process: the owner may still finish its work."""
    assert pool.run([("a", "a")]) == ["equal"]
    (pid,) = pids(pool)
    assert os.getpgid(pid) != os.getpgid(0)  # nor is one hit that has only begun to start
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    time.sleep(0.2)
    assert pool.run([("a", "a")]) == ["equal"]
    assert pids(pool) == {pid}


def test_an_idle_worker_that_was_killed_is_replaced(pool):
    pool.run([("a", "a")])
    (worker,) = pool._workers
    worker.process.kill()
    worker.process.wait()
    assert pool.run([("a", "a")]) == ["equal"]
    assert worker not in pool._workers


def test_close_leaves_no_process_and_the_pool_can_be_used_again(pool):
    pool.run([("a", "a"), ("b", "b")])
    started = pids(pool)
    pool.close()
    assert not any(is_alive(pid) for pid in started)  # a zombie would still be there
    assert pool.run([("a", "a")]) == ["equal"]


def test_a_forgotten_pool_ends_its_workers(pool):
    other = ComparisonPool(SCRIPTED, timeout_seconds=1.5, workers=1)
    other.run([("a", "a")])
    (pid,) = pids(other)
    del other
    assert not is_alive(pid)


def test_an_interrupted_call_leaves_no_stale_reply(pool):
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    def compare_until_interrupted():
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        pool.run([("hang", "")])

    pool.run([("a", "a")])
    pool.timeout_seconds = 60.0
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            compare_until_interrupted()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert pool.run([("b", "c")]) == ["different"]


def test_the_worker_is_light(pool):
    modules = ["torch", "numpy", "transformers"]
    assert pool.run([("modules", name) for name in modules]) == ["different"] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the orphan in /proc")
def test_workers_end_when_their_owner_is_killed():
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from counterpoise.verify.math.comparison_pool import ComparisonPool\n"
        "pool = ComparisonPool('scripted_compare:compare', 1.5, 1)\n"
        "pool.run([('a', 'a')])\n"
        "print(pool._workers[0].process.pid, flush=True)\n"
        "input()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        pid = int(owner.stdout.readline())
        owner.kill()
    for _ in range(600):
        if not is_running(pid):
            return
        time.sleep(0.1)
    pytest.fail(f"worker {pid} outlived its owner")


def test_the_alarm_ends_a_hung_worker_that_nobody_kills():
    worker = subprocess.Popen(
        [sys.executable, "-m", "counterpoise.verify.math.comparison_worker", SCRIPTED, "0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    with worker:
        worker.stdin.write(b'["hang", ""]\n')
        worker.stdin.flush()
        assert worker.stdout.read() == b'{"ready": true}\n'
    assert worker.returncode == -signal.SIGALRM


@pytest.mark.parametrize(("timeout_seconds", "workers"), [(1.0, 0), (0.0, 1)])
def test_a_pool_that_could_do_nothing_is_refused(timeout_seconds, workers):
    with pytest.raises(PoiseError, match=r"use at least 1 worker and more than 0 seconds"):
        ComparisonPool(SCRIPTED, timeout_seconds, workers)


@pytest.mark.parametrize("compare", ["no_such_module:compare", "os:no_such_function"])
def test_a_worker_that_cannot_start_is_an_error_with_the_remedy(compare):
    with pytest.raises(PoiseError, match=r"cannot start.*python -m .*comparison_worker"):
        ComparisonPool(compare, timeout_seconds=1.5, workers=1).run([("a", "a")])


def test_a_worker_killed_while_it_starts_does_not_end_the_run(pool, monkeypatch):
    """Twice in a row; at the third time the verifier cannot start."""
    start, killed = ComparisonPool._start, []

    def start_and_kill(self):
        start(self)
        if len(killed) < limit:
            killed.append(self._workers[-1])
            killed[-1].process.kill()

    monkeypatch.setattr(ComparisonPool, "_start", start_and_kill)
    limit = 2
    assert pool.run([("a", "a")]) == ["equal"]
    assert len(killed) == 2
    pool.close()
    limit = 5
    with pytest.raises(PoiseError, match="exited with code -9"):
        pool.run([("a", "a")])


def test_a_pair_whose_worker_is_killed_once_is_compared_again(pool):
    pool.run([("a", "a")])
    (worker,) = pool._workers
    os.kill(worker.process.pid, signal.SIGSTOP)  # so that it holds the pair when it dies
    worker_thread = threading.Timer(0.3, worker.process.kill)
    worker_thread.start()
    assert pool.run([("b", "b")]) == ["equal"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the CPU time of a process")
def test_the_limit_counts_cpu_time_not_the_load_of_the_machine(pool, monkeypatch):
    """A worker that is stopped for longer than the limit, as by a busy machine, loses nothing."""
    # Time for the signal below to come late.
    monkeypatch.setattr(comparison_pool, "WALL_SECONDS_PER_CPU_SECOND", 100)
    pool.run([("a", "a")])
    (worker,) = pool._workers
    os.kill(worker.process.pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (worker.process.pid, signal.SIGCONT)).start()
    assert pool.run([("b", "b")]) == ["equal"]  # timeout_seconds is 0.6
    assert pool.run([("spin", "")]) == ["timeout"]
