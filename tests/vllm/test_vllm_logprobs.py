"""What is kept where it is drawn, and the scheduler's short ways, in an engine that has little of everything."""

from __future__ import annotations

import contextlib
import importlib.util

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlx.ranks import start_distributed
from rlx_sdk import Request, RolloutContext, Sampling, TrainingError

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

from rlx_plugins import vllm_engine
from rlx_plugins.hf_rollout import HFRollout
from rlx_plugins.options import HFOptions, VLLMOptions
from rlx_plugins.vllm_rollout import VLLMRollout
from rlx_plugins.vllm_sampler import Counted, Record
from rlx_plugins.vllm_scheduler import shorten

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports and kernels warn of much

BLOCK, BUDGET, CACHE = 32, 256, 20 * 32
"""Tokens of a block of the KV cache, of a step, and of all blocks."""


class Tight:
    """A backend with room for three long completions at once."""

    def __init__(self):
        torch.manual_seed(0)
        policy = LlamaForCausalLM(LlamaConfig(
            hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=99, max_position_embeddings=BUDGET, initializer_range=0.2, pad_token_id=0, bos_token_id=None,
            eos_token_id=None)).eval()
        context = RolloutContext(policy, "no such folder", (5, 23, 41), 0, "cpu", "float32", BUDGET)
        self.backend, self.hf = VLLMRollout(VLLMOptions(), context), HFRollout(HFOptions(), context)
        self.backend.sync(policy.named_parameters(), 0)
        self.hf.sync(iter(()), 0)
        self.engine = self.backend._engine
        self.scheduler = self.engine._llm.llm_engine.engine_core.engine_core.scheduler

    def generate(self, requests):
        self.engine.forget_prompts()
        return {i: [(g.tokens, g.logprobs, g.finish_reason) for g in group]
                for i, group in self.backend.generate(requests)}

    def asked_of_vllm(self, requests):
        """The same with vLLM's own logprobs."""
        draw, self.engine._draw = self.engine._draw, None
        try:
            return self.generate(requests)
        finally:
            self.engine._draw = draw


@pytest.fixture(scope="module")
def tight():
    start_distributed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_engine, "_cpu_memory", lambda: {
            "kv_cache_memory_bytes": CACHE << 10, "block_size": BLOCK, "max_num_batched_tokens": BUDGET})
        found = Tight()
        yield found
        found.backend.close()


@pytest.fixture
def events(tight, monkeypatch):
    """How often something happened: a record of a generation, a token taken back, a request preempted."""
    seen = {"records": 0, "taken back": 0, "preempted": 0}

    def record(*args):
        seen["records"] += 1
        return Record(*args)

    def set_offset(generator, offset, plain=Counted.set_offset):
        seen["taken back"] += offset < generator.get_offset()
        plain(generator, offset)

    def preempt(*args, plain=tight.scheduler._preempt_request, **kwargs):
        seen["preempted"] += 1
        plain(*args, **kwargs)

    monkeypatch.setattr(vllm_engine, "Record", record)
    monkeypatch.setattr(Counted, "set_offset", set_offset)
    monkeypatch.setattr(tight.scheduler, "_preempt_request", preempt)
    return seen


def same(one, two):
    """Without pytest's search for the differences of long lists, which takes minutes."""
    return one == two


def prompt(i, length):
    return tuple((7 * j + 13 * i) % 99 for j in range(length))


HOT = Sampling(2.0, 1.0, 40)
PLAIN = {"groups, of which some stop early": [Request(prompt(i, 3), HOT, 4, i) for i in range(3)],
         "prompts that are read in parts": [Request(prompt(i, 150), Sampling(0.7, 1.0, 9), 1, i) for i in range(4)],
         "more than the cache holds": [Request(prompt(i, 60), Sampling(0.7, 1.0, 90), 1 + i % 2, i) for i in range(8)]}
SHARE = dict(zip(PLAIN, (0.2, 0.9, 0.7), strict=True))
EXPECTED = dict(zip(PLAIN, (None, "taken back", "preempted"), strict=True))


@pytest.mark.parametrize("kind", PLAIN)
def test_kept_logprobs_are_vllm_s_and_tokens_are_hf_s(tight, events, kind):
    found = tight.generate(PLAIN[kind])
    assert events["records"] == 1
    assert EXPECTED[kind] is None or events[EXPECTED[kind]] > 0
    assert same(found, tight.asked_of_vllm(PLAIN[kind]))
    assert events["records"] == 1
    assert len({len(tokens) for group in found.values() for tokens, *_ in group}) > 1
    assert same({i: [tokens for tokens, *_ in group] for i, group in found.items()},
                {i: [g.tokens for g in group] for i, group in tight.hf.generate(PLAIN[kind])})


@pytest.mark.parametrize("kind", PLAIN)
def test_of_a_token_the_scheduler_hears_only_where_something_happens(tight, monkeypatch, kind):
    """The same comes out if it hears of all, and when a generation before was left in the middle."""
    scheduler, heard = tight.scheduler, []
    own = type(scheduler).update_from_output

    def update(self, step, result):
        heard.extend(step.num_scheduled_tokens)
        return own(self, step, result)

    monkeypatch.setattr(type(scheduler), "update_from_output", update)
    left = tight.backend.generate(PLAIN[kind])
    next(left)
    left.close()
    heard.clear()
    found = tight.generate(PLAIN[kind])
    tokens, few = sum(len(tokens) for group in found.values() for tokens, *_ in group), len(heard)
    assert few < SHARE[kind] * tokens
    for name in ("schedule", "update_from_output"):
        monkeypatch.setattr(scheduler, name, getattr(type(scheduler), name).__get__(scheduler))
    heard.clear()
    assert same(tight.generate(PLAIN[kind]), found)
    assert len(heard) >= tokens


OTHER = {"one seed twice": [Request((1, 2), HOT, 2, 1), Request((3, 4), HOT, 2, 1)],
         "greedy": [Request((1, 2), HOT, 2, 1), Request((3, 4), Sampling(0.0, 1.0, 12), 2, 2)],
         "top_p": [Request((1, 2), HOT, 2, 1), Request((3, 4), Sampling(1.0, 0.5, 12), 2, 2)],
         "top_k": [Request((1, 2), HOT, 2, 1), Request((3, 4), Sampling(1.0, 1.0, 12, top_k=3), 2, 2)]}


@pytest.mark.parametrize("kind", OTHER)
def test_vllm_is_asked_for_what_is_not_all_drawn_here(tight, events, kind):
    found = tight.generate(OTHER[kind])
    assert events["records"] == 0
    assert same(found, tight.asked_of_vllm(OTHER[kind]))
    assert all(len(tokens) == len(logprobs) > 0 for group in found.values() for tokens, logprobs, _ in group)


def test_a_token_that_was_not_kept_is_an_error_and_nothing_stays(tight, monkeypatch):
    request = Request((1, 2, 3), Sampling(0.7, 1.0, 30), 2, 3)
    kept, add = [], Record.add
    monkeypatch.setattr(Record, "add", lambda *args: (kept.append(args), len(kept) == 4 or add(*args)))
    with pytest.raises(TrainingError, match=r"^vllm: it returned other tokens than were drawn"):
        tight.generate([request])
    assert tight.engine._record is tight.engine._draw.record is None
    monkeypatch.undo()
    assert same(tight.generate([request]), tight.asked_of_vllm([request]))
    assert tight.engine._record is tight.engine._draw.record is None


def test_a_request_of_somebody_else_in_the_batch_is_an_error(tight):
    """Vllm's own sampler then draws all rows."""
    from vllm import SamplingParams

    llm = tight.engine._llm.llm_engine
    llm.add_request("other", {"prompt_token_ids": [1]}, SamplingParams(top_p=0.5, max_tokens=100, detokenize=False))
    with pytest.raises(TrainingError, match=r"^vllm: it returned other tokens than were drawn"):
        tight.generate([Request((1, 2, 3), Sampling(0.7, 1.0, 9), 1, 3)])
    llm.abort_request(["other"])
    while llm.has_unfinished_requests():
        llm.step()


class Late:
    """A GPU's event, not there until one waits for it."""

    def __init__(self):
        self.waited = False

    def query(self):
        return self.waited

    def synchronize(self):
        self.waited = True


def test_a_record_waits_only_for_what_is_read_and_keeps_the_later_of_two():
    record, events = Record([2**62 + 3, 7], 3), [Late() for _ in range(4)]

    def add(seeds, places, tokens, logprobs, event):
        found = torch.stack((torch.tensor(tokens, dtype=torch.int32) + 1, torch.tensor(logprobs).view(torch.int32)))
        record._coming.append((np.array(seeds, np.uint64), np.array(places, np.uint64), found, event))

    add([7, 2**62 + 3], [0, 0], [11, 21], [-0.1, -0.2], events[0])  # taken back of 7
    add([7, 2**62 + 3], [0, 1], [11, 22], [-0.3, -0.4], events[1])
    add([2**62 + 3, 99], [2, 0], [23, 1], [-0.5, -9.0], events[2])  # and a row of somebody else
    add([7], [3], [1], [-9.0], events[3])  # one too many
    assert record.logprobs(7, [11]) == pytest.approx([-0.3])
    assert [event.waited for event in events] == [True, True, False, False]
    assert record.logprobs(2**62 + 3, [21, 22, 23]) == pytest.approx([-0.2, -0.4, -0.5])
    for wrong in ([11, 1], [12]):
        with pytest.raises(TrainingError, match="other tokens than were drawn"):
            record.logprobs(7, wrong)
    with contextlib.suppress(IndexError):
        record._keep()
    assert all(event.waited for event in events)


@pytest.fixture
def checked(tight, monkeypatch):
    """The scheduler's calls, each asked of vLLM too where it was cut short; the number of these."""
    manager = tight.scheduler.kv_cache_manager
    (blocks,) = manager.coordinator.single_type_managers
    assert {"allocate_slots", "cache_blocks"} <= set(vars(manager))  # the engine has installed them
    plain, asked, short = type(manager), [], []

    def state():
        return ({name: len(held) for name, held in blocks.req_to_blocks.items()}, dict(blocks.num_cached_block),
                manager.block_pool.get_num_free_blocks())

    for name in ("allocate_slots", "cache_blocks"):
        def own(*args, name=name, **kwargs):
            asked.append(name)
            return getattr(plain, name)(manager, *args, **kwargs)

        monkeypatch.setattr(manager, name, own)
    assert shorten(tight.engine._llm)
    for name in ("schedule", "update_from_output"):  # in whose own steps the calls are made
        monkeypatch.setattr(tight.scheduler, name, getattr(type(tight.scheduler), name).__get__(tight.scheduler))
    for name, cut in [(name, getattr(manager, name)) for name in ("allocate_slots", "cache_blocks")]:
        def call(*args, name=name, cut=cut, **kwargs):
            asked.clear()
            found = cut(*args, **kwargs)
            if name not in asked:
                before = state()
                assert getattr(plain, name)(manager, *args, **kwargs) is found
                assert same(state(), before)
                short.append(name)
            return found

        monkeypatch.setattr(manager, name, call)
    return short


@pytest.mark.parametrize("kind", PLAIN)
def test_the_scheduler_is_cut_short_only_where_it_does_nothing(tight, checked, kind):
    found = tight.generate(PLAIN[kind])
    tokens = sum(len(tokens) for group in found.values() for tokens, *_ in group)
    assert len(checked) > 0.5 * tokens


@pytest.fixture
def scheduled(tight):
    """Makes a request with blocks for its prompt, of which none is in the cache of prompts."""
    from vllm.v1.request import Request as Scheduled

    from vllm import SamplingParams

    manager = tight.scheduler.kv_cache_manager
    hasher, made = tight.engine._llm.llm_engine.engine_core.engine_core.request_block_hasher, []

    def make(length):
        made.append(Scheduled(request_id=f"own {len(made)}", prompt_token_ids=list(prompt(1, length)),
                              sampling_params=SamplingParams(max_tokens=99), pooling_params=None, block_hasher=hasher))
        assert manager.allocate_slots(made[-1], length, new_computed_blocks=manager.empty_kv_cache_blocks,
                                      delay_cache_blocks=True)
        made[-1].num_computed_tokens = length
        return made[-1]

    yield make
    for request in made:
        manager.free(request)


def test_a_block_is_in_the_cache_of_prompts_with_its_last_token(tight, checked, scheduled):
    manager, request = tight.scheduler.kv_cache_manager, scheduled(3 * BLOCK + 1)
    (blocks,) = manager.coordinator.single_type_managers
    for tokens in range(1, 3 * BLOCK + 2):
        manager.cache_blocks(request, tokens)
        assert blocks.num_cached_block.get(request.request_id, 0) == tokens // BLOCK
    assert checked.count("cache_blocks") == 3 * BLOCK + 1 - 3


@pytest.mark.parametrize("late", [0, 1, 2])
def test_also_where_tokens_come_some_steps_after_they_are_scheduled(tight, checked, scheduled, late):
    """As from a GPU, of which the scheduler is a step ahead."""
    manager = tight.scheduler.kv_cache_manager
    (blocks,) = manager.coordinator.single_type_managers
    for length in (1, BLOCK - 1, BLOCK, BLOCK + 1):
        request = scheduled(length)
        for step in range(60):
            if step >= late:
                request.append_output_token_ids(step)
                manager.cache_blocks(request, request.num_computed_tokens - late)
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
            assert len(blocks.req_to_blocks[request.request_id]) == -(-request.num_computed_tokens // BLOCK)
        assert blocks.num_cached_block[request.request_id] == (request.num_computed_tokens - late) // BLOCK
    assert checked.count("allocate_slots") > 0.7 * 4 * 60


def test_an_engine_of_another_kind_stays_as_it_is(tight, monkeypatch):
    manager = tight.scheduler.kv_cache_manager
    before = dict(vars(manager))
    assert not shorten(object())
    monkeypatch.setattr(tight.scheduler, "connector", object())
    assert not shorten(tight.engine._llm)
    monkeypatch.undo()
    (blocks,) = manager.coordinator.single_type_managers
    for managers in ((), (blocks, blocks), (object(),)):
        monkeypatch.setattr(manager.coordinator, "single_type_managers", managers)
        assert not shorten(tight.engine._llm)
    assert same(vars(manager), before)
