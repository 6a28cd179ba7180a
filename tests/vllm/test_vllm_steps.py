"""The scheduler's short steps beside vLLM's own: two schedulers in lock-step, with tokens made up, and no model."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
from collections import Counter, deque
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

import vllm
from rlx_plugins.vllm_scheduler import shorten
from rlx_plugins.vllm_steps import SPECIAL, shorten_steps

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports warn of much

LENGTH, ROWS, VOCAB = 48, 16, 40


class Side:
    """What an engine has, less its model."""

    def __init__(self, config, ahead, blocks, size):
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.engine.output_processor import OutputProcessor
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        init_none_hash(sha256)
        config.cache_config.num_gpu_blocks, config.cache_config.block_size = blocks, size
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=8, dtype=torch.float32)
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["one"], spec)])
        self.scheduler = (AsyncScheduler if ahead else Scheduler)(
            config, cache, StructuredOutputManager(config), size, hash_block_size=size)
        self.outputs, self.ahead = OutputProcessor(None, log_stats=False), ahead
        self.hasher, self.coming = get_request_block_hasher(size, sha256), deque()
        core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=self.scheduler))
        self.llm = SimpleNamespace(llm_engine=SimpleNamespace(output_processor=self.outputs, engine_core=core))

    def add(self, name, prompt, settings):
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.parallel_sampling import ParentRequest
        from vllm.v1.request import Request

        def made(name, settings):
            return EngineCoreRequest(
                request_id=f"{name}-x", external_req_id=name, prompt_token_ids=prompt, mm_features=None,
                sampling_params=settings, pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None,
                data_parallel_rank=None)

        parent = ParentRequest(made(name, settings)) if settings.n > 1 else None
        for i in range(settings.n):
            request = made(name, settings.clone())
            if parent is not None:
                request.request_id, request.sampling_params = parent.get_child_info(i)
            self.outputs.add_request(request, None, parent, i)
            self.scheduler.add_request(Request.from_engine_core_request(request, self.hasher))

    def abort(self, name):
        from vllm.v1.request import RequestStatus

        ids = self.outputs.abort_requests([name], internal=False)
        self.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)

    def step(self, number):
        """What was scheduled, and which requests are done; with the tokens of a step later if it is ahead."""
        from vllm.v1.outputs import ModelRunnerOutput

        step = self.scheduler.schedule() if self.scheduler.requests or self.scheduler.has_requests() else None
        if step is not None:
            names = sorted(step.num_scheduled_tokens, key=lambda name: random.Random(f"{name} {number}").random())
            drawn = [[] if self.scheduler.requests[name].is_prefill_chunk
                     else [random.Random(f"{number} {name}").randrange(VOCAB)] for name in names]
            self.coming.append((step, ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=drawn,
                logprobs=None, prompt_logprobs_dict={})))
        shown, done = plain(step), []
        if self.coming and (len(self.coming) > self.ahead or step is None or not step.num_scheduled_tokens):
            step, drawn = self.coming.popleft()
            found = self.scheduler.update_from_output(step, drawn).get(0)
            assert sorted(step.num_scheduled_tokens) == sorted(drawn.req_ids)
            done = self.outputs.process_outputs(found.outputs if found else []).request_outputs
        return shown, [(output.request_id, output.finished, output.num_cached_tokens, [
            (one.index, list(one.token_ids), one.finish_reason, one.stop_reason) for one in output.outputs])
            for output in done]

    def state(self):
        """All that a later step could depend on."""
        scheduler, pool = self.scheduler, self.scheduler.kv_cache_manager.block_pool
        (blocks,) = scheduler.kv_cache_manager.coordinator.single_type_managers
        requests = {name: {key: plain(value) for key, value in vars(request).items() if isinstance(
            value, int | list) and key != "rlx_row"} for name, request in scheduler.requests.items()}
        return (requests, [request.request_id for request in scheduler.running], len(scheduler.waiting),
                {name: [(block.block_id, block.block_hash, block.ref_cnt) for block in held]
                 for name, held in blocks.req_to_blocks.items()}, dict(blocks.num_cached_block),
                [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
                set(pool.cached_block_hash_to_block._cache), set(scheduler.prev_step_scheduled_req_ids),
                set(scheduler.finished_req_ids), sorted(self.outputs.request_states),
                sorted(self.outputs.parent_requests))


def plain(value):
    """Of vLLM's records their content."""
    if dataclasses.is_dataclass(value):
        return {name: plain(one) for name, one in vars(value).items() if name != "sampling_params"}
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    import vllm.config as parts

    folder = tmp_path_factory.mktemp("model")
    LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=VOCAB,
                num_key_value_heads=2, max_position_embeddings=LENGTH, architectures=["LlamaForCausalLM"],
                bos_token_id=None, eos_token_id=None).save_pretrained(folder)
    return parts.VllmConfig(
        model_config=parts.ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=LENGTH),
        scheduler_config=parts.SchedulerConfig(
            max_num_seqs=ROWS, max_num_batched_tokens=64, max_model_len=LENGTH, is_encoder_decoder=False),
        cache_config=parts.CacheConfig(enable_prefix_caching=True), device_config=parts.DeviceConfig(device="cpu"))


def settings(chance, **other):
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(**{
        "n": chance.choice([1, 4]), "max_tokens": chance.randrange(3, LENGTH), "ignore_eos": True, "detokenize": False,
        "stop_token_ids": [chance.randrange(VOCAB)], "output_kind": RequestOutputKind.FINAL_ONLY, **other})


def counted(side, monkeypatch):
    """How many rows were scheduled, and of how many vLLM heard there and with their tokens."""
    counts, kind = Counter(), type(side.scheduler)

    def schedule(self, *args, own=kind.schedule):
        step = own(self, *args)
        counts["scheduled"] += len(step.num_scheduled_tokens) * (self is side.scheduler)
        return step

    def update(self, step, result, own=kind.update_from_output):
        counts["updated"] += len(step.num_scheduled_tokens) * (self is side.scheduler)
        return own(self, step, result)

    monkeypatch.setattr(kind, "schedule", schedule)
    monkeypatch.setattr(kind, "update_from_output", update)
    return counts


def special(chance):
    """What somebody else might ask for."""
    from vllm.sampling_params import RequestOutputKind

    return chance.choice([{"logprobs": 0}, {"min_tokens": 3}, {"output_kind": RequestOutputKind.DELTA}])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("kind", "blocks", "size"), [
    ("calm", 300, 16), ("calm", 300, 4), ("tight", 26, 4), ("tight", 8, 16), ("wild", 60, 4)])
def test_short_steps_leave_behind_what_vllm_s_own_do(config, monkeypatch, ahead, kind, blocks, size):
    """With room for all; with so little that requests are preempted; with requests and calls of somebody else."""
    from vllm.v1.core.sched.interface import PauseState

    chance = random.Random(f"{kind} {size}")
    own, short = Side(config, ahead, blocks, size), Side(config, ahead, blocks, size)
    assert shorten(short.llm)
    assert "schedule" in vars(short.scheduler)
    left, seen, alive, rows = counted(short, monkeypatch), Counter(), [], 0

    def both(call, *args):
        for side in (own, short):
            call(side, *args)

    for number in range(400):
        if number < 300 and (not own.scheduler.requests or chance.random() < (0.02 if kind == "calm" else 0.3)) and (
                len(own.scheduler.requests) < ROWS + 2):
            prompt = [7 * j % 35 + chance.randrange(2) for j in range(chance.randrange(1, LENGTH // 2))]
            other = special(chance) if kind == "wild" and chance.random() < 0.1 else {}
            both(Side.add, str(number), prompt, settings(chance, **other))
            alive.append(str(number))
        if alive and chance.random() < 0.02:
            both(Side.abort, alive.pop(chance.randrange(len(alive))))
        if kind == "wild" and chance.random() < 0.02:
            both(lambda side: side.scheduler.reset_prefix_cache(reset_running_requests=True))
        (pause,) = chance.choices(list(PauseState), (40, 1, 1))
        both(lambda side, pause=pause: side.scheduler.set_pause_state(pause))
        (step, done), found = own.step(number), short.step(number)
        assert (step, done) == found, number
        assert own.state() == short.state(), number
        rows += step["total_num_scheduled_tokens"] if step else 0
        seen.update(one[2] for output in done for one in output[3])
        alive = [name for name in alive if name not in {output[0] for output in done if output[1]}]
        seen["preempted"] += sum(request.num_preemptions > 0 for request in own.scheduler.requests.values())
    assert min(seen["length"], seen["stop"]) > 0
    assert (seen["preempted"] > 0) == (kind != "calm")
    if kind == "calm":
        assert left["scheduled"] < 0.4 * rows
        assert left["updated"] < 0.4 * rows


def test_a_scheduler_that_is_not_known_stays_as_it_is(config, monkeypatch):
    side = Side(config, False, 60, 4)
    before = dict(vars(side.scheduler))
    assert not shorten_steps(object())
    for name in SPECIAL:
        monkeypatch.setattr(side.scheduler, name, object(), raising=False)
        assert not shorten_steps(side.llm)
        monkeypatch.undo()
    monkeypatch.setattr(side.outputs, "log_stats", True)
    assert not shorten_steps(side.llm)
    monkeypatch.undo()
    monkeypatch.setattr(vllm, "__version__", "0.25.0")
    assert not shorten_steps(side.llm)
    monkeypatch.undo()
    monkeypatch.setattr(side.scheduler, "__class__", type("Other", (type(side.scheduler),), {}))
    assert not shorten_steps(side.llm)
    monkeypatch.undo()
    assert vars(side.scheduler) == before
    assert shorten_steps(side.llm)
