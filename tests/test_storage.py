"""Files are written whole or not at all, whatever the disk, the user or another writer does."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.inference import files

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[1]
WRITER = """
import importlib.util, os, resource, signal, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
path, step = Path(sys.argv[2]), sys.argv[3]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def wait(*_):
    print("writing", flush=True)
    time.sleep(60)

if step == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
elif step == "inside a write":
    files.PIECE, write, count = 1_000, os.write, iter(range(1_000))
    os.write = lambda *given: write(*given) if next(count) < 5 else die()
elif step == "wait":
    os.fsync = wait
elif step != "nothing":
    setattr(os, step, die)
try:
    files.write_whole(path, [b"n" * 400_000, b"ew"])
except files.StoreError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def tree(chain):
    return cb.fit(chain.problem, chain.observe(10, 0)).to_datatree(draws=16, rows=True)


@pytest.fixture
def file(tree, tmp_path):
    path = cb.write_datatree(tree, tmp_path / "post.nc")
    assert names(tmp_path) == ["post.nc"]
    return path


def names(folder):
    return sorted(os.listdir(folder))


def writer(path, step, **options):
    """Start another process that writes 400,002 bytes and does as told at a step."""
    command = [sys.executable, "-c", WRITER, files.__file__, str(path), step]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("step", "code", "advice"),
    [
        ("open", errno.EACCES, "choose a directory in which you may write"),
        ("open", errno.EROFS, "choose a directory in which you may write"),
        ("write", errno.ENOSPC, "free some space, or write to another disk"),
        ("write", errno.EDQUOT, "free some space, or write to another disk"),
        ("write", errno.EIO, "look at the disk"),
        ("fsync", errno.EIO, "look at the disk"),
        ("replace", errno.EPERM, "choose a directory in which you may write"),
    ],
)
def test_a_failed_write_leaves_the_old_file(file, tree, monkeypatch, step, code, advice):
    before, real, left = file.read_bytes(), getattr(os, step), [2]
    monkeypatch.setattr(files, "PIECE", 10_000)

    def fail(*given, **more):
        left[0] -= step == "write"
        if left[0] > 0 and step == "write":
            return real(*given, **more)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(cb.StoreError) as caught:
        cb.write_datatree(tree, file)
    monkeypatch.undo()
    for text in (str(file), os.strerror(code), advice, "Nothing was changed"):
        assert text in str(caught.value)
    assert file.read_bytes() == before and names(file.parent) == ["post.nc"]


@pytest.mark.slow
def test_a_full_disk_is_a_store_error_and_the_process_lives(tmp_path):
    """A real one; writing through HDF5 here used to end the process by a signal."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        code = (
            "import sys, causal_bo_ppl as cb\n"
            "system = cb.models.load('chain')\n"
            "post = cb.fit(system.problem, system.observe(10, 0))\n"
            "path = post.to_netcdf(sys.argv[1], draws=16)\n"
            "before = path.read_bytes()\n"
            "try:\n    post.to_netcdf(path, draws=4_000, rows=True)\n"
            "except cb.StoreError as error:\n    print(error)\n"
            "assert path.read_bytes() == before\n"
            "cb.open_datatree(path, system.problem)\n"
        )
        command = [sys.executable, "-c", code, str(small / "post.nc")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "No space left on device; free some space" in done.stdout
        assert names(small) == ["post.nc"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)  # noqa: S607


def test_a_limit_on_the_size_of_files_is_a_store_error(tmp_path):
    path = tmp_path / "post.nc"
    path.write_bytes(b"old")
    said, _ = writer(path, "limit").communicate(timeout=60)
    assert "cannot write 400,002 bytes" in said and "File too large; free some space" in said
    assert path.read_bytes() == b"old" and names(tmp_path) == ["post.nc"]


@pytest.mark.parametrize("step", ["open", "inside a write", "fsync", "replace"])
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_tidies_up(file, tree, step):
    before = file.read_bytes()
    other = writer(file, step)
    other.communicate(timeout=60)
    assert other.returncode == -signal.SIGKILL and file.read_bytes() == before
    assert len(names(file.parent)) == (1 if step == "open" else 2)
    cb.write_datatree(tree, file.parent / "other.nc")  # the temporary file is not of this target
    assert len(names(file.parent)) == (2 if step == "open" else 3)
    cb.write_datatree(tree, file)
    assert names(file.parent) == ["other.nc", "post.nc"]


def test_a_temporary_file_is_kept_while_its_process_lives(file, tree, chain):
    other = writer(file, "wait")
    try:
        assert other.stdout.readline() == "writing\n"
        cb.write_datatree(tree, file)
        kept = [name for name in names(file.parent) if name.endswith(".part")]
        assert len(kept) == 1 and (file.parent / kept[0]).stat().st_size == 400_002
    finally:
        other.kill()
        other.communicate()
    cb.write_datatree(tree, file)
    assert names(file.parent) == ["post.nc"]
    cb.open_datatree(file, chain.problem)


def test_two_threads_write_the_same_file_and_the_last_one_wins(tmp_path, monkeypatch):
    path, first, go, real = tmp_path / "x", threading.Event(), threading.Event(), os.fsync

    def slow(descriptor):
        if threading.current_thread().name == "slow" and not first.is_set():
            first.set()
            assert go.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    thread = threading.Thread(target=files.write_whole, args=(path, [b"slow"]), name="slow")
    thread.start()
    assert first.wait(30)
    files.write_whole(path, [b"fast"])
    assert path.read_bytes() == b"fast" and len(names(tmp_path)) == 2
    go.set()
    thread.join()
    assert path.read_bytes() == b"slow" and names(tmp_path) == ["x"]


def test_a_temporary_file_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    path, real, calls = tmp_path / "x", files._lock_new, []

    def beaten(descriptor):
        if not calls:
            files.remove_abandoned(path)
        calls.append(real(descriptor))
        return calls[-1]

    monkeypatch.setattr(files, "_lock_new", beaten)
    files.write_whole(path, [b"whole"])
    assert calls == [False, True] and path.read_bytes() == b"whole" and names(tmp_path) == ["x"]


def test_files_of_others_are_never_removed(file, tree):
    prefix, folder = files._prefix(file), file.parent
    (folder / f"{prefix}{'0' * 32}.part").mkdir()
    (folder / f"{prefix}{'1' * 32}.part").symlink_to(file)
    os.mkfifo(folder / f"{prefix}{'2' * 32}.part")
    short, bare = f"{prefix}{'3' * 31}.part", f"{prefix}{'4' * 32}"
    for name in (short, bare, "post.nc.part", ".post.nc.part"):
        (folder / name).write_text("mine")
    target = f".causal_bo_ppl-{'5' * 16}-{prefix[-17:]}{'5' * 32}.part"
    (folder / target).write_text("of another target")
    (folder / f"{prefix[:-17]}{'6' * 16}-{'6' * 32}.part").write_text("of another host")
    if os.geteuid() == 0:
        (other := folder / f"{prefix}{'7' * 32}.part").write_text("of another user")
        os.chown(other, 12_345, -1)
    before = names(folder)
    cb.write_datatree(tree, file)
    assert names(folder) == before
    (folder / f"{prefix}{'8' * 32}.part").write_text("of a dead writer of ours")
    cb.write_datatree(tree, file)
    assert names(folder) == before


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_an_interrupt_leaves_nothing_behind(file, tree, monkeypatch, step):
    before = file.read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt, match="^$"):
        cb.write_datatree(tree, file)
    monkeypatch.undo()
    assert file.read_bytes() == before and names(file.parent) == ["post.nc"]


def test_what_is_no_regular_file_is_refused_and_stays(tree, tmp_path):
    kinds = {"folder": "a directory", "pipe": "a named pipe", "port": "a socket"}
    kinds["loop"] = "a symbolic link in a loop"
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "port"))  # the length of such a path is limited
    if os.geteuid() == 0:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        kinds["null"] = "a device"
    before = {name: os.lstat(tmp_path / name) for name in kinds}
    for name, kind in kinds.items():
        with pytest.raises(cb.StoreError, match=f"{name}': it is {kind}, no regular file"):
            cb.write_datatree(tree, tmp_path / name)
        after = os.lstat(tmp_path / name)
        assert (after.st_ino, after.st_mode, after.st_rdev) == tuple(
            getattr(before[name], field) for field in ("st_ino", "st_mode", "st_rdev")
        )
    if os.geteuid() != 0:  # root could replace it, if the code were wrong
        with pytest.raises(cb.StoreError, match="cannot write '/dev/null': it is a device"):
            cb.write_datatree(tree, "/dev/null")
    assert names(tmp_path) == sorted(kinds)


def test_a_link_is_followed_also_to_a_file_that_is_not_there_yet(tree, chain, tmp_path):
    real, link = tmp_path / "real.nc", tmp_path / "link.nc"
    link.symlink_to(real)
    for _ in range(2):
        assert cb.write_datatree(tree, link) == real and link.is_symlink()
        again = cb.open_datatree(link, chain.problem)
        assert again.identical(cb.open_datatree(real, chain.problem))
    (tmp_path / "lost.nc").symlink_to(tmp_path / "none" / "real.nc")
    with pytest.raises(cb.StoreError, match="its directory does not exist; make it first"):
        cb.write_datatree(tree, tmp_path / "lost.nc")
    assert names(tmp_path) == ["link.nc", "lost.nc", "real.nc"]


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tree, tmp_path):
    path = cb.write_datatree(tree, tmp_path / "post.nc")
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.chmod(0o640)
    cb.write_datatree(tree, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("bad", ["", None, 3, b"post.nc", "a\0b"])
def test_a_path_that_is_none_is_refused(tree, chain, bad):
    for use in (lambda: cb.write_datatree(tree, bad), lambda: cb.open_datatree(bad, chain.problem)):
        with pytest.raises(cb.StoreError, match="a file needs a path, got"):
            use()


def test_names_may_be_as_long_as_names_can_be(tree, tmp_path):
    cb.write_datatree(tree, tmp_path / ("β" * 126 + ".nc"))
    with pytest.raises(cb.StoreError, match="File name too long; choose another path"):
        cb.write_datatree(tree, tmp_path / ("β" * 127 + ".nc"))
    assert len(names(tmp_path)) == 1
