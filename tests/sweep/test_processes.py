"""Studies in processes of their own: killed, without room on the disk, and computed by workers of a cluster."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import ukjax

from ..inside import Manner
from . import study


ROOT = Path(__file__).parents[2]


def environment(tmp_path):
    flags = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": flags, **cache}


def started(tmp_path, *arguments, before=""):
    """The study in a process of its own."""
    run = "import runpy, sys; sys.argv[0] = 'study'; runpy.run_module('tests.sweep.study', run_name='__main__')"
    code = f"{before}\n{run}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment(tmp_path), **pipes)


@pytest.mark.long
def test_a_full_disk_is_told_and_survived(tmp_path):
    """No file may be longer than some bytes, which those of q in a chunk are."""
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))"
    folder = tmp_path / "full"
    process = started(tmp_path / "limited", folder, 2000, 500, before=limit)  # with a compilation cache of its own
    shown, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "cannot be written to" in shown
    assert "the same call goes on when there is room" in shown
    assert not list(folder.rglob("*.partial"))
    again = started(tmp_path, folder, 2000, 500)
    assert again.communicate(timeout=300)[0] == ""
    quiet = started(tmp_path, tmp_path / "quiet", 2000, 500)
    assert quiet.communicate(timeout=300)[0] == ""
    assert study.results(folder) == study.results(tmp_path / "quiet")


@pytest.mark.long
def test_twenty_kills(tmp_path):
    """200 chunks; killed 20 times, some time after another few are done."""
    samples, chunk, rng = 12_800, 64, np.random.default_rng(0)
    quiet = started(tmp_path, tmp_path / "quiet", samples, chunk)
    assert quiet.communicate(timeout=500)[0] == ""
    folder, kills = tmp_path / "killed", 0
    count = lambda: len(list(folder.glob("done/0*.json")))
    for _ in range(20):
        process, before = started(tmp_path, folder, samples, chunk), count()
        while process.poll() is None and count() < before + 2:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.3))
        kills += process.poll() is None
        process.kill()
        process.communicate()
    assert kills == 20
    last = started(tmp_path, folder, samples, chunk)
    assert last.communicate(timeout=500)[0] == ""
    assert ukjax.study.sweep_status(folder, thoroughly=True).chunks_done == 200
    assert study.results(folder) == study.results(tmp_path / "quiet")


@pytest.fixture
def scheduler(tmp_path):
    """The address of a scheduler, and itself; two worker processes, which have this folder to import from."""
    environment_ = environment(tmp_path)
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    file = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT, "env": environment_}
    processes = [subprocess.Popen([*command, "--scheduler-file", str(file)], **quiet)]
    try:
        while not file.exists():
            time.sleep(0.1)
        yield processes, json.loads(file.read_text())["address"], quiet
    finally:
        for process in processes:
            process.kill()
            process.wait()


def worker(scheduler, **others):
    processes, address, quiet = scheduler
    quiet = {**quiet, **others}
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    processes.append(subprocess.Popen([*command, "--no-dashboard"], **quiet))
    return processes[-1]


@pytest.mark.long
def test_a_worker_computes_as_the_process_that_studies(scheduler, tmp_path, monkeypatch):
    """It was told neither XLA's flags nor the number of devices, and its chunks are the same to the last bit."""
    told = environment(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    quiet = started(tmp_path, tmp_path / "quiet", 60, 30)
    worker(scheduler, env={k: v for k, v in told.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")})
    process = started(tmp_path, tmp_path / "cluster", 60, 30, scheduler[1])
    for one in (quiet, process):
        shown = one.communicate(timeout=300)[0]
        assert one.returncode == 0, shown
    assert study.results(tmp_path / "quiet") == study.results(tmp_path / "cluster")


def test_a_worker_with_another_version():
    manner = Manner.here()
    assert manner.versions["jax"] == jax.__version__
    with pytest.raises(RuntimeError, match=rf"A worker has other versions .*: jax {jax.__version__} \(there 0.1.2\)"):
        manner._replace(versions={**manner.versions, "jax": "0.1.2"}).take()


@pytest.mark.long
def test_workers_of_dask_that_die(scheduler, tmp_path):
    """Two processes, one killed in the middle and replaced, twice: complete, and the same to the last bit."""
    samples, chunk = 6400, 64
    quiet = started(tmp_path, tmp_path / "quiet", samples, chunk)
    assert quiet.communicate(timeout=300)[0] == ""
    workers = [worker(scheduler), worker(scheduler)]
    folder = tmp_path / "cluster"
    process = started(tmp_path, folder, samples, chunk, scheduler[1])
    count = lambda: len(list(folder.glob("done/0*.json")))
    for i in range(2):
        while process.poll() is None and count() < 30 * (i + 1):
            time.sleep(0.01)
        assert process.poll() is None
        workers[i].kill()
        workers.append(worker(scheduler))
    shown = process.communicate(timeout=300)[0]
    assert process.returncode == 0, shown
    assert ukjax.study.sweep_status(folder, thoroughly=True).chunks_done == 100
    assert study.results(folder) == study.results(tmp_path / "quiet")


@pytest.mark.long
def test_a_scheduler_that_is_gone(scheduler, tmp_path):
    samples, chunk, folder = 6400, 64, tmp_path / "cluster"
    worker(scheduler)
    process = started(tmp_path, folder, samples, chunk, scheduler[1])
    while process.poll() is None and len(list(folder.glob("done/0*.json"))) < 10:
        time.sleep(0.01)
    for one in scheduler[0]:
        one.kill()
    shown = process.communicate(timeout=120)[0]
    assert process.returncode != 0
    assert "The scheduler is gone. The same call goes on" in shown
    alone = started(tmp_path, folder, samples, chunk)
    assert alone.communicate(timeout=300)[0] == ""
    assert ukjax.study.sweep_status(folder, thoroughly=True).chunks_done == 100
