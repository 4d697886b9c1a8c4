"""Units on Dask workers: what is lost when a worker dies, and what remains at the end.

Internals: workers are killed while they compute, which a sweep does not let one time.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import dask
import distributed
import jax
import numpy as np
import pytest
from helpers.scripted_units import draw, noted, scripted, soon

import causal_bo_ppl as cb
from causal_bo_ppl.experiments import execution
from causal_bo_ppl.experiments.execution import UnitRunner

pytestmark = pytest.mark.heavy
TESTS = Path(__file__).parents[1]
SEEDS = range(5)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def run_python(arguments, folder, **options):
    source = os.pathsep.join([str(Path(cb.__file__).parents[1]), str(TESTS), str(folder)])
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_results_are_those_of_this_process_and_workers_are_kept_between_calls():
    """The second call needs a worker more; an interrupt ends a third one and all workers."""
    units = [scripted("draw_slowly", seed) for seed in SEEDS]
    with UnitRunner(workers=2, progress=False) as runner:
        first = runner.compute(units[:1])
        second = runner.compute(units)
        assert (first.workers, second.workers) == (1, 2) and not len(second.failed)
        for unit, result in zip(units, second.results, strict=True):
            assert np.array_equal(result["value"], draw(unit))
        assert [result.attrs["is_new"] for result in second.results] == [0, 1, 1, 1, 1]
        pids = {result.attrs["pid"] for result in second.results}
        assert first.results[0].attrs["pid"] in pids and os.getpid() not in pids
    assert not any(map(is_alive, pids))


def test_interrupt_ends_workers_in_the_middle_of_their_units(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "three")]

    def interrupt_when_begun():
        soon(lambda: all(path.exists() and path.read_text() for path in paths[:2]))
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt_when_begun)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background: ignored
    interrupting.start()
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            UnitRunner(workers=2, progress=False) as runner,
        ):
            runner.compute([scripted("sleep_long", path=path) for path in paths])
    finally:
        signal.signal(signal.SIGINT, before)
    interrupting.join()
    assert not any(is_alive(noted(path)[0]) for path in paths[:2]) and not paths[2].exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are read from /proc")
def test_worker_has_one_thread_and_nothing_remains_of_it(monkeypatch, tmp_path):
    """Neither variables of the environment nor a cache that the user has not chosen."""
    chosen = jax.config.jax_compilation_cache_dir
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    before = dict(os.environ)
    try:
        with UnitRunner(workers=1) as runner:
            [result] = runner.compute([scripted("describe_process", path=tmp_path / "a")]).results
            cache = Path((tmp_path / "a").read_text())
            assert cache.is_dir()
    finally:
        jax.config.update("jax_compilation_cache_dir", chosen)
    pool, busiest, others, size = result["value"].to_numpy()
    assert pool == 1 and busiest > 5 and others <= 0.1 * busiest and size == 8
    assert dict(os.environ) == before
    assert not cache.exists() and [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("by", ["variable", "configuration"])
def test_cache_of_the_user_is_used(by, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    chosen = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", "by configuration")
    if by == "variable":
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "by variable")
    found = execution._jax_variables("temporary")["JAX_COMPILATION_CACHE_DIR"]
    jax.config.update("jax_compilation_cache_dir", chosen)
    assert found == f"by {by}"


def test_worker_that_dies_loses_its_unit_alone(tmp_path):
    """Also where Dask is configured to drop a worker that is not back at once."""
    units = [scripted("wait_for_second", path=tmp_path), scripted("die_once", path=tmp_path)]
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10 ms"}),
        UnitRunner(workers=2, progress=False) as runner,
    ):
        long, dying = runner.compute(units).results
    assert noted(tmp_path / "long") == [long.attrs["pid"]]  # begun once, finished by the same
    first, second = noted(tmp_path / "dying")
    assert second == dying.attrs["pid"] and len({first, second, long.attrs["pid"]}) == 3


def test_units_that_kill_raise_or_cannot_be_sent_fail_and_the_others_are_computed(tmp_path):
    methods = ["draw", "die", "fail", "give_up", "wait", "draw_slowly"]
    units = [scripted(method, path=tmp_path / method) for method in methods]
    units[4] = scripted("wait", path=threading.Lock())
    with UnitRunner(workers=2, progress=False) as runner:
        found = runner.compute(units)
    assert [each.attrs["method"] for each in found.results] == ["draw", "draw_slowly"]
    assert found.workers == 2
    lost = found.failed.set_index("method")
    assert lost.loc["die", "error"] == "every process that computed this unit died"
    assert len(set(noted(tmp_path / "die"))) >= 2
    assert lost.loc["fail", "error"] == "helpers.scripted_units.UnpicklableError: nothing there"
    assert "in fail" in lost.loc["fail", "traceback"] and len(noted(tmp_path / "fail")) == 1
    assert lost.loc["give_up", "error"] == "SystemExit: the unit gave up"
    assert "the unit cannot be pickled: " in lost.loc["wait", "error"]


def test_unit_is_not_computed_again_when_its_worker_dies_before_the_result_is_fetched(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "dying")]
    methods = ["fail", "fail", "die_at_first"]
    units = [scripted(method, path=path) for method, path in zip(methods, paths, strict=True)]
    with UnitRunner(workers=1, progress=False) as runner:
        running = runner.run(units)
        finished = [next(running)[0]]
        time.sleep(1.0)  # the second unit is finished, and its result is not fetched
        finished += [unit for unit, _ in running]
    assert finished == units
    assert [len(noted(path)) for path in paths] == [1, 1, 3]  # `die` notes it too


def test_cluster_that_loses_a_worker_computes_every_unit(cluster):
    units = [scripted("draw_slowly", seed) for seed in SEEDS]
    killed = min(worker.pid for worker in cluster.workers.values())
    found = {}
    with UnitRunner(scheduler=cluster.scheduler_address) as runner:
        for unit, result in runner.run(units):
            if not found:
                os.kill(killed, signal.SIGKILL)
            found[unit.seed] = result
    assert sorted(found) == list(SEEDS) and not is_alive(killed)
    for unit in units:
        assert np.array_equal(found[unit.seed]["value"], draw(unit))
    pids = {result.attrs["pid"] for result in found.values()}
    assert pids - {killed} and os.getpid() not in pids


def test_results_come_in_the_order_in_which_units_finish(cluster, tmp_path):
    units = [scripted("wait", path=tmp_path / "written"), scripted("draw")]
    with UnitRunner(scheduler=cluster.scheduler_address) as runner:
        running = runner.run(units)
        assert next(running)[0] is units[1]
        (tmp_path / "written").touch()
        assert [unit for unit, _ in running] == [units[0]]


def test_cluster_is_left_without_units_and_is_not_shut_down(cluster):
    units = [scripted("draw_slowly", seed) for seed in range(50)]
    with UnitRunner(scheduler=cluster.scheduler_address) as runner:
        running = runner.run(units)
        next(running)
        running.close()
    soon(lambda: not cluster.scheduler.tasks)
    assert len(cluster.scheduler.workers) == 2 and cluster.status.name == "running"


def test_worker_starts_no_workers(cluster):
    with UnitRunner(scheduler=cluster.scheduler_address) as runner:
        [(_, failed)] = runner.run([scripted("nest")])
    assert "WorkerError: no worker process started" in failed.error


def test_cluster_of_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(cb, "__version__", "9.9")
    with (
        UnitRunner(scheduler=cluster.scheduler_address) as runner,
        pytest.raises(
            cb.errors.WorkerError, match=r"has causal_bo_ppl 0.* but here is causal_bo_ppl 9"
        ),
    ):
        runner.compute([scripted("draw")])


def test_cluster_that_does_not_answer_or_has_no_workers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(execution, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(execution, "WORKER_SECONDS", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://127.0.0.1:9", 8786):
        with (
            UnitRunner(scheduler=address) as runner,
            pytest.raises(cb.errors.WorkerError, match=f"no Dask scheduler answers at {address}"),
        ):
            runner.compute([scripted("draw")])
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as empty,
        UnitRunner(scheduler=empty.scheduler_address) as runner,
        pytest.raises(
            cb.errors.WorkerError, match="has begun nothing within 0.5 s; start workers with"
        ),
    ):
        runner.compute([scripted("draw")])


def test_arguments_that_cannot_be_used_are_refused_before_any_process_starts():
    with pytest.raises(cb.errors.ArgumentError, match="workers must be a whole number, at least 1"):
        UnitRunner(workers=0)
    with pytest.raises(
        cb.errors.ArgumentError, match="workers = 2 is for this machine, but scheduler"
    ):
        UnitRunner(workers=2, scheduler="tcp://127.0.0.1:1")


SCRIPT = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
import xarray as xr
from causal_bo_ppl.experiments.execution import UnitRunner
from causal_bo_ppl.experiments.units import Loaded, Unit
print("begun", flush=True)
FACTOR = 2

@dataclass(frozen=True, eq=False)
class Double(Unit):
    def measure(self):
        if self.seed == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return xr.Dataset({"value": double(self.seed)})

def double(value):
    return FACTOR * value

with UnitRunner(workers=1, progress=False) as runner:
    found = runner.compute([Double("script", "double", seed, Loaded("chain")) for seed in (1, 2)])
print([int(each["value"]) for each in found.results], len(found.failed))
"""


@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "script"]])
def test_script_without_a_guard_runs_once_and_sends_what_it_defines(arguments, tmp_path):
    """Also when a worker is started again, after the first one was killed."""
    (tmp_path / "script.py").write_text(SCRIPT)
    output, errors = run_python(arguments, tmp_path).communicate(timeout=240)
    assert output.splitlines() == ["begun", "[2, 4] 0"], errors
    assert not errors


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent_and_print_nothing(sent, tmp_path):
    """SIGINT goes to all processes, as Ctrl-C in a terminal does; SIGKILL to the parent alone."""
    script = (
        "import signal, sys\n"
        "from causal_bo_ppl.experiments.execution import UnitRunner\n"
        "from helpers.scripted_units import scripted\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background: ignored
        "with UnitRunner(workers=2, progress=False) as runner:\n"
        "    runner.compute([scripted('sleep_long', path=path) for path in sys.argv[1:]])\n"
    )
    paths = [tmp_path / "one", tmp_path / "two"]
    parent = run_python(["-c", script, *map(str, paths)], tmp_path, start_new_session=True)
    try:
        soon(lambda: all(path.exists() and path.read_text() for path in paths), 240)
        pids = [noted(path)[0] for path in paths]
        if sent == signal.SIGINT:
            for pid in pids:
                os.kill(pid, sent)
            time.sleep(0.2)
            assert all(map(is_alive, pids)) and parent.poll() is None
            os.killpg(parent.pid, sent)
        else:
            parent.kill()
        _, errors = parent.communicate(timeout=60)
        assert errors.count("Traceback") == (sent == signal.SIGINT), errors
        soon(lambda: not any(map(is_alive, pids)))
    finally:
        parent.kill()
        parent.communicate()


def test_workers_that_never_start_are_given_up(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif '--multiprocessing-fork' in sys.orig_argv:\n    os._exit(7)\n"
    )
    script = (
        "from causal_bo_ppl.experiments import sweep\n"
        "sweep('chain', ['gc-cbo'], settings={'rounds': 1}, seeds=1, workers=1)\n"
    )
    _, errors = run_python(["-c", script], tmp_path).communicate(timeout=240)
    assert "WorkerError: no worker process started" in errors
