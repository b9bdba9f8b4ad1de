"""`knapcache serve` in its own process, with the embedded model and real clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx
import openai
import pytest

from knapcache.cli.serve import new_key
from knapcache.proxy.run import TENANT_KEY
from tests.support.programs import find_module, find_program

find_module("xllamacpp", "the extra local")

REQUEST = {"model": "smollm2-135m", "max_tokens": 8, "messages": [{"role": "user", "content": "Say hello."}]}


class ServeProcess:
    """A running command. The address is read from its start-up message."""

    def __init__(self, *arguments: str) -> None:
        env = {name: value for name, value in os.environ.items() if name not in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}
        env["KNAPCACHE_COMPILE"] = "0"
        command = [sys.executable, "-m", "knapcache", "serve", "--port", "0", "--policy", "lru", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        self.message = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.message += line
            if line.startswith("try it:"):
                break
        self.url = self.message.split()[5]
        self.example = line.removeprefix("try it:").strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it with SIGINT."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(40) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


def paste(command: str) -> str:
    """Run a line in a shell, and return what it prints."""
    return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_real_model_is_paid_for_once_also_after_a_restart(tmp_path: Path) -> None:
    with ServeProcess("--path", str(tmp_path / "data")) as served:
        check_that_a_model_is_paid_for_once(served, tmp_path / "data")
        if shutil.which("curl"):
            assert len(served.message.splitlines()) == 3
            assert json.loads(paste(served.example))["choices"][0]["message"]["content"], "as it is printed"
    with ServeProcess("--path", str(tmp_path / "data")) as served:
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=REQUEST, headers={"authorization": "Bearer any"})
        assert answer.headers["x-knapcache"] == "hit"


def check_that_a_model_is_paid_for_once(served: ServeProcess, folder: Path) -> None:
    assert "embedded model smollm2-135m" in served.message
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as sdk:
        create = sdk.chat.completions.with_raw_response.create
        first, again = create(**REQUEST), create(**REQUEST)  # type: ignore[call-overload]
        assert (first.headers["x-knapcache"], again.headers["x-knapcache"]) == ("miss", "hit")
        assert first.parse().model_dump() == again.parse().model_dump()
        assert float(again.headers["x-knapcache-saved-seconds"]) > 0
        assert int(again.headers["x-knapcache-saved-tokens"]) >= 8
        assert "x-knapcache-saved-usd" not in again.headers, "the model is free"
        streams = [
            "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            for stream in (sdk.chat.completions.create(**REQUEST, stream=True) for _ in range(2))  # type: ignore[call-overload]
        ]
        assert streams == [first.parse().choices[0].message.content] * 2
    admin = {"authorization": f"Bearer {(folder / 'admin-token').read_text().strip()}"}
    summary = httpx.get(f"{served.url}/admin/v1/summary", headers=admin).json()
    assert (summary["all"]["misses"], summary["all"]["hits"]) == (1, 3)
    assert (summary["prices"], summary["amounts"]["unit"]) == ("none", "seconds")
    assert (summary["all"]["usd_spent"], summary["all"]["usd_saved"], summary["all"]["priced"]) == (0.0, 0.0, 0)
    assert summary["all"]["seconds_saved"] == pytest.approx(3 * summary["all"]["seconds_spent"])
    assert summary["all"]["tokens_saved"] == 3 * summary["all"]["tokens_spent"] > 0
    assert summary["all"]["cost_saved"] * summary["amounts"]["factor"] == pytest.approx(summary["all"]["seconds_saved"])
    assert [model["price"] for model in summary["models"]] == ["free"]
    assert "knapcache_usd_saved_total" in httpx.get(f"{served.url}/metrics").text
    assert "Say hello" not in "".join(
        path.read_text(errors="replace") for path in folder.rglob("*") if path.suffix in (".csv", ".json")
    )


def test_with_tenants_the_example_works_with_the_key_of_a_tenant(tmp_path: Path) -> None:
    find_program("curl", "curl")
    key, _, tenant = new_key("team").partition("\n")
    (tmp_path / "settings.toml").write_text(tenant)
    with ServeProcess("--path", str(tmp_path / "data"), "--config", str(tmp_path / "settings.toml")) as served:
        assert "error" in json.loads(paste(served.example))
        assert json.loads(paste(served.example.replace(TENANT_KEY, key)))["choices"][0]["message"]["content"]
