"""Units of work in other processes: what is lost when one dies, and what is left at the end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest
import worker_tasks

import causal_bo_ppl as cb
from causal_bo_ppl.experiments import cluster as clusters
from causal_bo_ppl.experiments import workers as processes
from causal_bo_ppl.experiments.workers import Workers, run_units

SEEDS = list(range(7))


def in_place(results, count):
    """Results in the order of their units; each must have come once."""
    found = list(results)
    assert sorted(position for position, _ in found) == list(range(count))
    return [result for _, result in sorted(found, key=lambda each: each[0])]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def soon(claim, seconds=30.0):
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_results_are_those_of_this_process_whatever_the_number_of_workers():
    expected = [worker_tasks.draw(seed) for seed in SEEDS]
    for workers in (1, 2):
        found = in_place(run_units(worker_tasks.draw, SEEDS, workers=workers), len(SEEDS))
        assert np.array_equal(found, expected)
    assert list(run_units(worker_tasks.draw, [])) == []


def test_results_come_in_the_order_in_which_units_end(tmp_path):
    path = tmp_path / "read"
    units = [("wait", path), ("write", tmp_path / "other")]
    running = run_units(worker_tasks.meet, units, workers=2)
    assert next(running) == (1, "write")
    path.touch()
    assert list(running) == [(0, "wait")]


def test_worker_that_dies_loses_its_unit_alone(tmp_path):
    units = [("long", tmp_path), ("dying", tmp_path)]
    long, dying = in_place(run_units(worker_tasks.long_or_dying, units, workers=2), 2)
    assert worker_tasks.noted(tmp_path / "long") == [long[1]]  # begun once, ended by the same
    first, second = worker_tasks.noted(tmp_path / "dying")
    assert second == dying[1] and len({first, second, long[1]}) == 3


@pytest.mark.parametrize(("what", "how"), [("signal", "signal SIGKILL"), ("code", "exit code 3")])
def test_unit_whose_worker_always_dies_fails_after_so_many_tries(tmp_path, what, how):
    units = [(what, tmp_path / "dying"), ("return", tmp_path / "a"), ("return", tmp_path / "b")]
    failed, *others = in_place(run_units(worker_tasks.die, units, workers=1, tries=2), 3)
    assert others == ["return", "return"]
    assert failed.died and failed.tried == 2 and not failed.traceback
    assert failed.error.endswith(f"died 2 times, at last with {how}")
    assert len(set(worker_tasks.noted(tmp_path / "dying"))) == 2
    assert len(worker_tasks.noted(tmp_path / "a")) == 1


def test_exception_of_the_task_is_told_and_not_tried_again(tmp_path):
    units = [("raise", tmp_path / "raise"), ("exit", tmp_path / "exit"), ("return", tmp_path / "c")]
    raised, left, fine = in_place(run_units(worker_tasks.die, units, workers=1), 3)
    assert raised.error == "worker_tasks.OddError: nothing there" and raised.tried == 1
    assert "in die" in raised.traceback and not raised.died
    assert left.error == "SystemExit: the task gave up" and fine == "return"
    assert len({*worker_tasks.noted(tmp_path / "raise"), *worker_tasks.noted(tmp_path / "c")}) == 1


def test_what_cannot_be_pickled_fails_by_name():
    units = [3, threading.Lock(), 4]
    one, locked, two = in_place(run_units(worker_tasks.unpicklable, units, workers=1), 3)
    assert "the result cannot be pickled: TypeError" in one.error and "generator" in two.error
    assert "the unit cannot be pickled: TypeError" in locked.error and not locked.died
    [unread] = in_place(run_units(worker_tasks.unreadable, [1]), 1)
    assert unread.error.startswith("the result cannot be unpickled: ValueError: invalid literal")
    lock = threading.Lock()
    with pytest.raises(cb.WorkerError, match="the task cannot be sent .*leave open files, locks"):
        run_units(lambda unit: lock, [1])


@pytest.fixture
def no_cache(monkeypatch):
    """No cache of compiled programs that the user has chosen, by variable or by configuration."""
    chosen = jax.config.jax_compilation_cache_dir
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", chosen)


def test_worker_has_one_thread_and_a_cache_that_is_gone_afterwards(monkeypatch, no_cache):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    running = run_units(worker_tasks.surroundings, [0, 1], workers=1)
    _, (pid, pools, processors, cache, exists) = next(running)
    assert pid != os.getpid() and pools and set(pools) == {1} and processors == "1" and exists
    assert dict(os.environ) == before
    running.close()
    assert not Path(cache).exists()


@pytest.mark.parametrize("by", ["variable", "configuration"])
def test_cache_of_the_user_is_used_and_kept(by, monkeypatch, no_cache, tmp_path):
    if by == "variable":
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    else:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    [(_, found)] = run_units(worker_tasks.surroundings, [0])
    assert found[3] == str(tmp_path) and tmp_path.is_dir()


@pytest.mark.heavy
def test_processes_that_are_kept_compute_one_call_after_another(tmp_path):
    """Also one that comes up only when a later call has given it a unit."""
    with Workers(2) as pool:
        first = in_place(run_units(worker_tasks.slow_draw, SEEDS, pool=pool), len(SEEDS))
        pids = {worker.process.pid for worker in pool.started}
        units = [("return", tmp_path / "a"), ("signal", tmp_path / "b")]
        fine, failed = in_place(run_units(worker_tasks.die, units, pool=pool, tries=2), 2)
        assert fine == "return" and failed.died and failed.tried == 2
        again = in_place(run_units(worker_tasks.slow_draw, SEEDS, pool=pool), len(SEEDS))
        running = run_units(worker_tasks.slow_draw, SEEDS, pool=pool)
        next(running)
        running.close()  # ends them; the next call starts others
        assert not pool.started
        last = in_place(run_units(worker_tasks.draw, SEEDS, pool=pool), len(SEEDS))
        alive = [worker.process.pid for worker in pool.started]
    expected = [worker_tasks.draw(seed) for seed in SEEDS]
    for found in ([each[0] for each in first], [each[0] for each in again], last):
        assert np.array_equal(found, expected)
    assert {pid for _, pid in first} <= pids
    assert not any(map(is_alive, alive))
    with pytest.raises(cb.WorkerError, match="these workers are not open"):
        next(run_units(abs, [1], pool=Workers(1)))


def test_closing_early_leaves_no_process(tmp_path):
    units = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]

    def begun():
        return [worker_tasks.noted(path)[0] for path in units[:2]]

    def close_when_begun():
        soon(lambda: all(path.exists() and path.read_text() for path in units[:2]))
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=close_when_begun)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background: ignored
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(run_units(worker_tasks.sleep_long, units, workers=2))
    finally:
        signal.signal(signal.SIGINT, before)
    interrupting.join()
    assert not any(map(is_alive, begun())) and not multiprocessing.active_children()
    assert not units[2].exists()


def test_exception_where_results_are_read_leaves_no_process(tmp_path):
    units = [("write", tmp_path / "written"), ("wait", tmp_path / "never")]
    with (
        pytest.raises(ZeroDivisionError, match="division"),
        closing(run_units(worker_tasks.meet, units, workers=2)) as results,
    ):
        for position, _ in results:
            assert multiprocessing.active_children()
            1 / position
    assert not multiprocessing.active_children()


def test_workers_that_never_come_up_are_given_up(monkeypatch):
    monkeypatch.setattr(processes, "_serve", worker_tasks.never_ready)
    with pytest.raises(cb.WorkerError, match=r"2 in turn ended \(exit code 7\) before they were r"):
        list(run_units(worker_tasks.draw, SEEDS, workers=1, tries=2))
    assert not multiprocessing.active_children()


def test_arguments_that_cannot_be_used_are_refused_before_any_process_starts():
    for name in ("workers", "tries"):
        with pytest.raises(cb.ModelError, match=f"{name} must be a whole number, at least 1"):
            run_units(worker_tasks.draw, SEEDS, **{name: 0})
    with pytest.raises(cb.ModelError, match="workers = 2 is for this machine, but scheduler"):
        run_units(worker_tasks.draw, SEEDS, workers=2, scheduler="tcp://127.0.0.1:1")
    with pytest.raises(cb.ModelError, match="scheduler must be the address of a Dask cluster"):
        run_units(worker_tasks.draw, SEEDS, scheduler=8786)


@pytest.mark.heavy
def test_worker_starts_no_workers():
    [(_, failed)] = run_units(worker_tasks.nested, [1])
    assert "WorkerError: a worker process cannot start workers of its own" in failed.error


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are read from /proc")
def test_xla_computes_in_one_thread_and_in_64_bit_floats():
    [(_, (busy, dtype))] = run_units(worker_tasks.busy_threads, [1000])
    assert busy[0] > 5 and sum(busy[1:]) <= 0.1 * busy[0] and dtype == "float64"


SCRIPT = """
import os, sys
from causal_bo_ppl.experiments.workers import run_units
print("begun", flush=True)

class Pair:
    def __init__(self, value):
        self.value = value

def double(pair):
    return Pair(FACTOR * pair.value)

FACTOR = 2
results = dict(run_units(double, [Pair(1), Pair(2)], workers=2))
print([results[0].value, results[1].value], isinstance(results[0], Pair))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["file", "module", "command", "input"])
def test_script_runs_once_and_sends_its_own_functions_and_classes(how, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = {
        "file": ["script.py"],
        "module": ["-m", "script"],
        "command": ["-c", SCRIPT],
        "input": ["-"],
    }
    done = subprocess.run(
        [sys.executable, *arguments[how]],
        input=SCRIPT,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cb.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["begun", "[2, 4] True"], done.stderr
    assert not done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent_and_say_nothing(sent, tmp_path):
    """SIGINT goes to all processes, as Ctrl-C in a terminal does; SIGKILL to the parent alone."""
    script = (
        "import signal, sys, worker_tasks\n"
        "from causal_bo_ppl.experiments.workers import run_units\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background: ignored
        "list(run_units(worker_tasks.sleep_long, sys.argv[1:], workers=2))\n"
    )
    paths = [tmp_path / "one", tmp_path / "two"]
    source = [str(Path(cb.__file__).parents[1]), str(Path(__file__).parent)]
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(source)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        soon(lambda: all(path.exists() and path.read_text() for path in paths), 60)
        pids = [worker_tasks.noted(path)[0] for path in paths]
        if sent == signal.SIGINT:
            for pid in pids:
                os.kill(pid, sent)
            time.sleep(0.2)
            assert all(map(is_alive, pids)) and parent.poll() is None
            os.killpg(parent.pid, sent)
        else:
            parent.kill()
        _, words = parent.communicate(timeout=60)
        assert words.count("Traceback") == (sent == signal.SIGINT), words
        soon(lambda: not any(map(is_alive, pids)))
    finally:
        parent.kill()
        parent.communicate()


@pytest.fixture(scope="module")
def started_cluster():
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address=":0"
    ) as started:
        yield started


@pytest.fixture
def cluster(started_cluster):
    """A cluster that has replaced the workers which earlier tests have killed."""
    started_cluster.scale(2)
    soon(lambda: len(started_cluster.scheduler.workers) == 2, 240)
    return started_cluster


@pytest.mark.heavy
def test_cluster_one_of_whose_two_workers_is_killed_gives_what_processes_give(cluster):
    expected = in_place(run_units(worker_tasks.slow_draw, SEEDS, workers=2), len(SEEDS))
    before = sorted(worker.pid for worker in cluster.workers.values())
    found = {}
    for position, result in run_units(
        worker_tasks.slow_draw, SEEDS, scheduler=cluster.scheduler_address
    ):
        if not found:
            os.kill(before[0], signal.SIGKILL)
        found[position] = result
    assert sorted(found) == SEEDS and not is_alive(before[0])
    for position, (numbers, pid) in found.items():
        assert np.array_equal(numbers, expected[position][0]) and pid != os.getpid()
    assert {pid for _, pid in found.values()} - {before[0]}


@pytest.mark.heavy
def test_cluster_fails_only_the_unit_that_kills_its_workers(cluster, tmp_path):
    what = ["return", "signal", "raise", "return"]
    units = [(each, tmp_path / f"{position}") for position, each in enumerate(what)]
    address = cluster.scheduler_address
    first, killed, raised, last = in_place(
        run_units(worker_tasks.die, units, scheduler=address), len(units)
    )
    assert first == last == "return"
    assert killed.died and killed.tried == 4 and "every process that computed" in killed.error
    assert raised.error == "worker_tasks.OddError: nothing there" and not raised.died
    [locked] = in_place(run_units(worker_tasks.die, [threading.Lock()], scheduler=address), 1)
    assert "the unit cannot be pickled" in locked.error


@pytest.mark.heavy
def test_cluster_is_left_without_units_and_is_not_shut_down(cluster):
    running = run_units(worker_tasks.slow_draw, range(50), scheduler=cluster.scheduler_address)
    next(running)
    running.close()
    soon(lambda: not cluster.scheduler.tasks, 240)
    soon(lambda: len(cluster.scheduler.workers) == 2, 240)
    assert cluster.status.name == "running"


@pytest.mark.heavy
def test_cluster_of_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(cb, "__version__", "9.9")
    with pytest.raises(cb.WorkerError, match=r"has causal_bo_ppl 0.* but here is causal_bo_ppl 9"):
        next(run_units(worker_tasks.draw, SEEDS, scheduler=cluster.scheduler_address))


@pytest.mark.heavy
def test_cluster_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(clusters, "ANSWER", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://127.0.0.1:9"):
        with pytest.raises(cb.WorkerError, match=f"no Dask scheduler answers at {address}"):
            next(run_units(worker_tasks.draw, SEEDS, scheduler=address))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(cb.WorkerError, match=r"install causal_bo_ppl\[scale\]"):
        run_units(worker_tasks.draw, SEEDS, scheduler="tcp://127.0.0.1:9")


@pytest.mark.heavy
def test_cluster_without_workers_is_not_waited_for(monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(clusters, "ARRIVAL", 0.5)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as empty,
        pytest.raises(cb.WorkerError, match="has begun nothing within 0.5 s; start workers with"),
    ):
        next(run_units(worker_tasks.draw, SEEDS, scheduler=empty.scheduler_address))
