"""The disk cache answers with what was put, or not at all."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tinyml.cache import DiskCache, key

KEY = key("a test")
DATA = bytes(range(256)) * 20


def entry(folder: Path) -> Path:
    return DiskCache(folder).put(KEY, ".bin", DATA)


def test_what_was_put_is_found_again(tmp_path):
    place = entry(tmp_path)
    assert DiskCache(tmp_path).get(KEY, ".bin") == DATA
    assert DiskCache(tmp_path).path(KEY, ".bin") == place
    assert place.read_bytes().startswith(DATA)


def test_other_keys_and_suffixes_are_missing(tmp_path):
    entry(tmp_path)
    assert DiskCache(tmp_path).get(key("another"), ".bin") is None
    assert DiskCache(tmp_path).get(KEY, ".so") is None


def test_empty_data_is_an_entry_too(tmp_path):
    DiskCache(tmp_path).put(KEY, ".bin", b"")
    assert DiskCache(tmp_path).get(KEY, ".bin") == b""


def test_keys_tell_where_parts_end():
    assert key("ab", "c") != key("a", "bc")
    assert key("ab") == key(b"ab") != key("ab", "")


def flip_a_byte(content: bytes) -> bytes:
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        lambda c: c[:-1],
        lambda c: c[:40],
        lambda c: c[:10],
        lambda c: b"",
        lambda c: c * 2,
    ],
    ids=["flipped", "short", "trailer-only", "stub", "empty", "doubled"],
)
def test_a_damaged_entry_is_missing_and_removed(tmp_path, damage):
    place = entry(tmp_path)
    place.write_bytes(damage(place.read_bytes()))
    assert DiskCache(tmp_path).get(KEY, ".bin") is None
    assert not place.exists()
    assert entry(tmp_path) == place
    assert DiskCache(tmp_path).get(KEY, ".bin") == DATA


def test_a_folder_that_cannot_be_written_is_announced_once_and_replaced(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    cache = DiskCache(tmp_path / "file" / "below")
    with pytest.warns(RuntimeWarning, match="cannot be written") as announced:
        place = cache.put(KEY, ".bin", DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(key("more"), ".bin", DATA)
    assert len(announced) == 1
    assert cache.get(KEY, ".bin") == DATA
    assert tmp_path not in place.parents


@pytest.mark.parametrize("folder", [None, Path("~/.cache/tinyml")], ids=["none", "no-home"])
def test_without_a_folder_entries_live_as_long_as_the_process(folder):
    cache = DiskCache(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, ".bin", DATA)
    assert cache.get(KEY, ".bin") == DATA
    assert DiskCache(folder).get(KEY, ".bin") is None


def test_the_temporary_folder_goes_with_the_process():
    script = "from tinyml.cache import *; print(DiskCache(None).put('abcd', '.bin', b'1'))"
    place = Path(subprocess.check_output([sys.executable, "-c", script], text=True).strip())
    assert place.name
    assert not place.parent.parent.exists()


def _fill(places: Connection) -> None:
    places.send(DiskCache(None).put(KEY, ".bin", DATA))


def test_the_temporary_folder_goes_with_a_worker_of_multiprocessing():
    receive, send = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=_fill, args=(send,))
    worker.start()
    send.close()
    place = receive.recv()
    worker.join()
    assert worker.exitcode == 0
    assert not place.parent.parent.exists()


def test_a_fork_leaves_the_temporary_folder_to_whom_made_it():
    place = (cache := DiskCache(None)).put(KEY, ".bin", DATA)
    worker = multiprocessing.get_context("fork").Process(target=cache.get, args=(KEY, ".bin"))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert place.exists()


def test_a_write_that_fails_leaves_no_file_behind(tmp_path):
    place = entry(tmp_path)
    place.unlink()
    place.mkdir()  # so that the last step, the rename, is refused
    cache = DiskCache(tmp_path)
    with pytest.warns(RuntimeWarning):
        cache.put(KEY, ".bin", DATA)
    assert list(place.parent.iterdir()) == [place]
    assert cache.get(KEY, ".bin") == DATA


HAMMER = """
import sys
import time
from pathlib import Path
from tinyml.cache import DiskCache, key
cache = DiskCache(Path(sys.argv[1]))
for turn in range(200):
    name = key(str(turn % 7))
    found = cache.get(name, ".bin")
    assert found in (None, name.encode() * 500), "a torn read"
    place = cache.put(name, ".bin", name.encode() * 500)
    if turn % 5 == 0:
        place.write_bytes(b"damage")
"""


def test_processes_share_a_folder_that_is_being_damaged(tmp_path):
    command = [sys.executable, "-c", HAMMER, str(tmp_path)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint


def alike(n: int) -> str:
    """A key whose entry lies in the same folder as others."""
    return "00" + key(str(n))[2:]


def test_what_was_not_read_for_longest_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr("tinyml.cache._SELDOM", 1)
    monkeypatch.setattr("tinyml.cache._MOST", 256 * 4 * 1100)  # four of them in a folder
    cache, old = DiskCache(tmp_path), 10 * 24 * 3600.0
    for n in range(4):
        place = cache.put(alike(n), ".bin", bytes(1000))
        os.utime(place, (0.0, time.time() - old + n))
    assert cache.get(alike(0), ".bin") is not None  # read: now number 1 is the oldest
    cache.put(alike(4), ".bin", bytes(1000))
    found = [n for n in range(5) if cache.get(alike(n), ".bin") is not None]
    assert found == [0, 2, 3, 4]


def test_now_and_then_an_entry_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr("tinyml.cache._MOST", 256 * 4 * 1100)
    cache = DiskCache(tmp_path)
    for n in range(100):
        place = cache.put(alike(n), ".bin", bytes(1000))
    assert len(list(place.parent.iterdir())) < 20


def test_an_entry_larger_than_all_room_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tinyml.cache._SELDOM", 1)
    monkeypatch.setattr("tinyml.cache._MOST", 256 * 100)
    cache = DiskCache(tmp_path)
    cache.put(alike(0), ".bin", bytes(1000))
    cache.put(alike(1), ".bin", bytes(1000))
    assert cache.get(alike(0), ".bin") is None
    assert cache.get(alike(1), ".bin") is not None
