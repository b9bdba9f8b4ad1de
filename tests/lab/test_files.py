"""Files that commands write: replaced as a whole, but a pipe is written in place."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from knapcache.lab.files import OutputFile


def test_a_file_is_replaced_and_a_link_to_it_is_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "table.json", tmp_path / "link.json"
    target.write_text("old")
    before = target.stat().st_ino
    link.symlink_to(target)
    OutputFile(link).write("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_ino != before


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    OutputFile(pipe).write("a table")
    assert pipe.is_fifo()
    reader.join(10)
    assert received == ["a table"]
