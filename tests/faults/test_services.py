"""A reward service that goes away in mid-run and comes back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rlx_sdk import RewardError, SpecError

from ..e2e.conftest import metrics_of

SHORT = {"rollout": {"max_completion": 4, "group_size": 2}, "data": {"eval": 0},
         "train": {"steps": 3, "batch_size": 2, "optim": {"policy": {"lr": 3e-4}}}}


class Service:
    """Scores by length, or judges, and stops listening after so many requests; ``port`` stays its own."""

    def __init__(self, until: int) -> None:
        self.keys = set[str | None]()
        self.until, self.stopped, self.port = until, threading.Event(), 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        service, answered = self, [0]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.keys.add(self.headers["Authorization"])
                answer = json.dumps({"scores": [len(s["completion"]) for s in body.get("samples", ())],
                                     "choices": [{"message": {"content": "Score: 5"}}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                answered[0] += 1
                if answered[0] == service.until:
                    threading.Thread(target=service.stop).start()

            def log_message(self, *said: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self.stopped.set()


@pytest.fixture
def service() -> Iterator[Callable[[int], Service]]:
    made: list[Service] = []

    def start(until: int) -> Service:
        made.append(Service(until))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def reward(port: int, **options: Any) -> list[dict[str, Any]]:
    return [{"name": f"http://127.0.0.1:{port}/", "label": "service", "options": {"batch": 64, **options}}]


@pytest.mark.fault("a reward service is down for a while")
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.full)])
def test_a_service_that_is_down_is_waited_for_and_nothing_is_lost(train, service, seconds):
    """Down after the first step: the run is that of a service that was always there, only later."""
    one = service(2)  # a request for each prompt's completions: the first step's two
    back: list[float] = []

    def restart() -> None:
        one.stopped.wait()
        one.until = -1
        time.sleep(seconds)
        one.start()
        back.append(time.monotonic())

    threading.Thread(target=restart, daemon=True).start()
    begin = time.monotonic()
    result = train("grpo", rewards=reward(one.port, attempts=1), **SHORT)
    assert back
    assert time.monotonic() - begin >= seconds
    whole = train("grpo", rewards=reward(service(-1).port), **SHORT)
    assert metrics_of(result.run) == metrics_of(whole.run)
    assert "could not be reached" in (result.run / "libraries.log").read_text()


@pytest.mark.fault("a reward service stays away")
def test_a_service_that_stays_away_ends_the_run_with_its_name(train, service):
    one = service(2)
    with pytest.raises(RewardError, match=rf"http://127.0.0.1:{one.port}/ could not be reached: ConnectError"):
        train("grpo", rewards=reward(one.port, patience=1), **SHORT)


def test_keys_reach_services_and_nothing_that_is_written(train, service, tmp_path, monkeypatch, capfd):
    """Of a judge, an http reward and wandb: every file of the run, and what is printed, also of an error."""
    one = service(-1)
    secrets = {"OPENAI_API_KEY": "sk-judge-8f3a", "MY_KEY": "sk-http-77c1", "WANDB_API_KEY": "5ec4e7" * 7,
               "HF_TOKEN": "hf_5ec4e7abc"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))
    judge = {"name": "judge:m", "options": {"url": f"http://127.0.0.1:{one.port}/v1", "patience": 0}}
    rewards = [*reward(one.port, key_variable="MY_KEY", patience=0), judge]
    settings = {"rewards": rewards, "trackers": [{"name": "wandb", "options": {"mode": "offline"}}], **SHORT}
    train("grpo", **settings)
    assert one.keys == {"Bearer sk-judge-8f3a", "Bearer sk-http-77c1"}
    one.stop()
    with pytest.raises(RewardError) as error:
        train("grpo", **settings)
    said = "".join(capfd.readouterr()) + str(error.value)
    written = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert len(written) > 10
    for name, secret in secrets.items():
        assert secret not in said, name
        assert [file for file, content in written.items() if secret.encode() in content] == [], name


def test_a_url_that_holds_a_password_is_refused_and_not_repeated(train):
    with pytest.raises(SpecError, match=r"holds a user or password.*name that with key_variable") as error:
        train("grpo", rewards=[{"name": "http://me:hunter2@here/"}], **SHORT)
    assert "hunter2" not in str(error.value)
