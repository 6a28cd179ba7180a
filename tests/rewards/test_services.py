"""Rewards behind HTTP: what is sent, what is made of the answers, and what is tried again."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from rlx.registry import Registry
from rlx.rewards import Provider, RewardPanel
from rlx.serve import service
from rlx.spec import RewardSpec
from rlx_plugins.rewards.http import HttpOptions, HttpReward
from rlx_plugins.rewards.judge import JudgeOptions, JudgeReward
from rlx_sdk import PluginError, RewardContext, RewardError, Sample, SpecError
from rlx_sdk.testing import check_reward

from .conftest import ROWS

URL = "http://judge/score"
REGISTRY = Registry.discover()


@pytest.fixture
def ask():
    """Scores samples with a service that is a function of the request; gives the scores and the requests."""
    made = []

    def run(answer, samples, kind=HttpReward, **options):
        seen = []

        async def handle(request):
            seen.append(request)
            given = answer(request, len(seen))
            return await given if asyncio.iscoroutine(given) else given

        config = HttpOptions(url=URL, backoff=0, **options) if kind is HttpReward else JudgeOptions(
            model="m", backoff=0, **options)
        reward = kind(config, RewardContext(), transport=httpx.MockTransport(handle))
        spec = RewardSpec(name="http", on_error="stop")
        made.append(RewardPanel([Provider("http", "'http' (rlx 0.1.0)", spec, reward)]))
        return made[-1].score(samples, ROWS).by_provider["http"], seen

    yield run
    for panel in made:
        panel.close()


def lengths(request, attempt=1):
    samples = json.loads(request.content)["samples"]
    return httpx.Response(200, json={"scores": [len(s["completion"]) for s in samples]})


def test_samples_go_out_in_batches_and_scores_come_back_in_order(ask, samples):
    scores, seen = ask(lengths, samples, batch=3)
    assert scores == [float(len(s.completion)) for s in samples]
    assert [len(json.loads(r.content)["samples"]) for r in seen] == [3, 3, 2]
    assert json.loads(seen[0].content)["samples"][1] == {
        "prompt": "prompt x", "completion": "bb", "messages": [], "finish_reason": "stop", "row": {}, "tokens": None}


def test_scores_may_have_parts_abstain_or_fail(ask, samples):
    def answer(request, attempt):
        return httpx.Response(200, json={"scores": [1, None, {"value": 2.0, "parts": {"a": 1}}]})

    assert ask(answer, samples[:3])[0] == [1.0, None, 2.0]

    def fails(request, attempt):
        return httpx.Response(200, json={"scores": [1, {"error": "no such language"}, "good"]})

    with pytest.raises(RewardError) as error:
        ask(fails, samples[:3])
    assert "sample 2 of 3 (data row 12, completion 'bb'): it failed: no such language" in str(error.value)
    assert "sample 3 of 3 (data row 13, completion 'ccc'): it gave 'good' (str); a number is wanted" in str(error.value)


@pytest.mark.parametrize(("answer", "said"), [
    (b"<html>", r"answered b'<html>'; {\"scores\": \[…\]} is wanted"),
    (b'{"scores": [1, 1, 1]}', "answered 3 scores for 2 samples"), (b'{"scores": 1}', "answered 1 for 2 samples"),
    (b'{"rewards": [1, 1]}', ".* is wanted"), (b"x" * 2000, r"answered more than 1,000 bytes \(max_bytes\)"),
])
def test_a_malformed_answer_names_the_rows(ask, samples, answer, said):
    with pytest.raises(RewardError, match=rf"(?s)all 2 samples together: {URL} {said}"):
        ask(lambda request, attempt: httpx.Response(200, content=answer), samples[:2], max_bytes=1000)

    def second(request, attempt):
        return httpx.Response(200, content=answer) if b'"bb"' in request.content else lengths(request)

    with pytest.raises(RewardError, match=rf"sample 2 of 2 \(data row 12, completion 'bb'\): {URL} answered"):
        ask(second, samples[:2], batch=1, max_bytes=1000)


def test_errors_of_the_server_and_the_connection_are_tried_again(ask, samples):
    def shaky(request, attempt):
        if attempt == 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(503) if attempt == 2 else lengths(request)

    scores, seen = ask(shaky, samples)
    assert (scores, len(seen)) == ([float(len(s.completion)) for s in samples], 3)
    with pytest.raises(RewardError, match=r"judge/score answered 500: b'down'"):
        ask(lambda request, attempt: httpx.Response(500, content=b"down"), samples, attempts=2)


def test_what_is_wrong_with_the_request_is_not_tried_again(ask, samples):
    requests = []

    def wrong(request, attempt):
        requests.append(request)
        return httpx.Response(429 if attempt == 1 else 404, content=b"no")

    with pytest.raises(RewardError, match="answered 429: b'no'"):
        ask(wrong, samples)
    assert len(requests) == 1


def test_requests_are_bounded_in_number_and_time(ask, samples):
    now, most = [0], [0]

    async def slow(request):
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.02)
        now[0] -= 1
        return lengths(request)

    assert ask(lambda r, n: slow(r), samples, batch=1, concurrency=3)[0] == [float(len(s.completion)) for s in samples]
    assert most[0] == 3

    async def never(request):
        await asyncio.sleep(30)

    with pytest.raises(RewardError, match=r"judge/score gave no answer within 0\.1 s"):
        ask(lambda r, n: never(r), samples, seconds=0.1, attempts=2)


def chat(text):
    return httpx.Response(200, json={"choices": [{"message": {"role": "assistant", "content": text}}]})


def test_a_judge_is_asked_with_the_template_and_its_answer_is_read(ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    samples = [Sample("2 + 2?", "4 {prompt}", row={"ground_truth": 4})]
    scores, seen = ask(lambda r, n: chat("Score: 3 at first; Score: **7.5**"), samples, JudgeReward, system="Be fair.",
                       template="{prompt} -> {completion} ({ground_truth})")
    assert scores == [0.75]
    body = json.loads(seen[0].content)
    assert (str(seen[0].url), seen[0].headers["authorization"]) == (
        "http://localhost:8000/v1/chat/completions", "Bearer sk-secret")
    assert body == {"model": "m", "temperature": 0.0, "max_tokens": 512, "messages": [
        {"role": "system", "content": "Be fair."}, {"role": "user", "content": "2 + 2? -> 4 {prompt} (4)"}]}


@pytest.mark.parametrize(("answer", "options", "said"), [
    (chat("Nice."), {}, "the judge said 'Nice.', where "), (chat("Score: 11"), {}, "11 is not within 0 and 10"),
    (chat("Score: 1"), {"template": "{missing}"}, "its template cannot be filled in: KeyError: 'missing'"),
    (httpx.Response(200, json={"choices": []}), {}, "which is no chat completion"),
    (chat("it is bad"), {"pattern": "is (bad)"}, "the judge's score is 'bad', which is no number"),
])
def test_a_judge_that_cannot_be_read_is_a_failure(ask, answer, options, said):
    with pytest.raises(RewardError, match=said.replace("(", r"\(")):
        ask(lambda r, n: answer, [Sample("p", "c")], JudgeReward, **options)


@pytest.fixture
def served(tmp_path):
    """A client of the service of a reward."""

    def make(name, **options):
        return httpx.AsyncClient(transport=httpx.ASGITransport(service(name, options)), base_url="http://here")

    return make


async def post(client, text):
    async with client:
        return await client.post("/", content=text)


def test_any_reward_can_be_served(served, tmp_path):
    (tmp_path / "odd_rules.py").write_text(
        "import asyncio\ndef odd(samples):\n    print('noise')\n    return [1 / len(s.completion) for s in samples]\n"
        "async def later(samples):\n    await asyncio.sleep(0)\n    return [1.0] * len(samples)\n")
    body = json.dumps({"samples": [{"prompt": "p", "completion": c} for c in ("ab", "", "abcd")]})
    answer = asyncio.run(post(served(f"{tmp_path}/odd_rules.py:odd"), body))
    assert answer.json()["scores"][::2] == [0.5, 0.25]
    assert "ZeroDivisionError: division by zero (" in answer.json()["scores"][1]["error"]
    assert asyncio.run(post(served(f"{tmp_path}/odd_rules.py:later"), body)).json() == {"scores": [1.0] * 3}
    assert asyncio.run(post(served("length", longest=3), body)).json() == {"scores": [1.0, 0.0, 0.0]}
    wrong = asyncio.run(post(served("length"), '{"samples": [{"prompt": "p"}]}'))
    assert (wrong.status_code, "not {\"samples\"" in wrong.json()["error"]) == (400, True)
    with pytest.raises(SpecError, match="unknown setting"):
        service("length", {"longst": 3})
    with pytest.raises(PluginError, match="Did you mean 'length'"):
        service("lenght", {})

    async def look():
        async with served("length") as client:
            return (await client.get("/")).json()

    assert asyncio.run(look())["name"] == "length"


def test_a_served_reward_scores_as_the_reward_itself(samples):
    app = service("polite_length", {})
    reward = HttpReward(HttpOptions(url="http://here/"), RewardContext(), transport=httpx.ASGITransport(app))
    panel = RewardPanel([Provider("http", "http", RewardSpec(name="http"), reward)])
    given = [*samples, Sample("p", "Thank you. " * 8, row={"n": 1})]
    entry = REGISTRY.get("reward", "polite_length")
    assert panel.score(given, range(9)).rewards == entry.call("build", entry.call("config")(), None).score(given)
    panel.close()


def test_they_keep_the_contract(monkeypatch):
    from dataclasses import replace

    http, judge = (REGISTRY.get("reward", name).plugin for name in ("http", "judge"))
    check_reward(replace(http, build=lambda o, c: HttpReward(
        o, c, transport=httpx.ASGITransport(service("length", {})))), {"url": URL})
    check_reward(replace(judge, build=lambda o, c: JudgeReward(
        o, c, transport=httpx.MockTransport(lambda r: chat("Score: 5")))), {"model": "m"})
