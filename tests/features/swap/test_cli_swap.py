"""`knapcache swap`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knapcache.cli.main import main
from tests.features.swap.two_models import CHEAPER, swapping

Captured = pytest.CaptureFixture[str]
FIELDS = ["model", "bill", "labels", "swapped", "loss", "wrongly_certified", "frames"]
SHORT = ["--loss", "0.05", "--requests", "1500", "--repeats", "2"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two frames. The model `good` is better than the asked one in a fifth of the answers; `bad` is worse in half."""
    path = tmp_path_factory.mktemp("log") / "pairs.jsonl"
    rows = [
        {
            "frame": frame,
            "question": f"question {k}",
            "score": 0.5,
            "cost": 1.0,
            "cheap": {
                "good": {"score": 1.0 if k % 5 == 0 else 0.5, "cost": 0.2},
                "bad": {"score": 0.0 if k % 2 == 0 else 0.5, "cost": 0.1},
            },
        }
        for frame in ("tickets", "mails")
        for k in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_table_of_models_and_a_file(log: str, tmp_path: Path, capsys: Captured) -> None:
    out, plot = tmp_path / "rows.json", tmp_path / "plot.png"
    assert main(["swap", log, *SHORT, "--json", str(out), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed, error = capsys.readouterr()
    assert error == ""
    text = " ".join(printed.split())
    assert text.startswith("80 lines in 2 frames. Each frame has 2 runs of 1,500 requests; the allowed loss is 0.05.")
    assert text.endswith(f"{plot} {out}")
    assert "tickets" not in text
    good, bad = json.loads(out.read_text())
    assert list(good)[: len(FIELDS)] == FIELDS
    assert (good["model"], bad["model"]) == ("good", "bad")
    assert good["bill"] < 0.5
    assert good["loss"] < 0.0
    assert bad["bill"] == pytest.approx(1.0 + bad["labels"])
    assert (bad["swapped"], bad["loss"], good["wrongly_certified"]) == (0.0, 0.0, 0)


def test_one_model_also_prints_its_frames(log: str, capsys: Captured) -> None:
    assert main(["swap", log, *SHORT, "--model", "bad"]) == 0
    printed = capsys.readouterr().out
    assert "tickets" in printed
    assert "hopeless" in printed
    assert "good" not in printed
    assert main(["swap", log, *SHORT, "--frames"]) == 0
    assert capsys.readouterr().out.count("tickets") == 2


def test_json_on_stdout_depends_on_the_options_only(log: str, capsys: Captured) -> None:
    def rows(*options: str) -> list[dict[str, object]]:
        assert main(["swap", log, *SHORT, "--model", "good", *options, "--json", "-"]) == 0
        found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
        return found

    (row,) = rows()
    assert rows() == [row]
    assert rows("--seed", "3") != [row]
    (dear,) = rows("--judge-price", "0.5")
    (free,) = rows("--judge-price", "0")
    assert free["labels"] < row["labels"] < dear["labels"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--loss 0", "the loss must be above 0 and below 1, not 0.0"),
        ("--loss much", "argument --loss: invalid float value: 'much'"),
        ("--requests 0", "requests must be at least 1, not 0"),
        ("--budget 2", "budget must be from 0 to 1, not 2.0"),
        ("--judge-price -1", "judge-price must be finite and not negative, not -1.0"),
        ("--model best", "the log has no cheaper model 'best': it has good, bad"),
        ("--json /nowhere/a.json", "cannot write to /nowhere/a.json: No such file or directory"),
        ("/nowhere.jsonl", "cannot read /nowhere.jsonl: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(options: str, message: str, log: str, capsys: Captured) -> None:
    try:
        code = main(["swap", *options.split(), *([] if options.startswith("/") else [log])])
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    printed, error = capsys.readouterr()
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert message in error


def test_the_labels_of_a_proxy(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.features.swap.labelling.ASKED_TWICE", 1.0)
    with swapping(tmp_path) as client:
        client.upstream.unsure = True
        for _ in range(30):
            client.ask()
        client.settle_labels()
        status = client.frames()[0]
    log = str(tmp_path / "swap.sqlite")
    before = Path(log).read_bytes()
    assert main(["swap", log, *SHORT, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    (frame,) = row["frames"]
    assert (row["model"], frame["lines"], frame["true_loss"]) == (CHEAPER, status["labels"], status["mean_loss"])
    assert (frame["asked_twice"], frame["floor"]) == (status["asked_twice"], 1.0)
    assert main(["swap", log, *SHORT]) == 0
    assert "floor" in capsys.readouterr().out
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    assert main(["swap", log, "--secret-file", str(other)]) == 2
    assert "or of another secret" in capsys.readouterr().err
    assert Path(log).read_bytes() == before
    empty = tmp_path / "cache.sqlite"
    assert main(["swap", str(empty)]) == 2
    assert "is no log of labels" in capsys.readouterr().err
