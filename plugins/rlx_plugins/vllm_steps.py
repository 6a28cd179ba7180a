"""Take vLLM's scheduler a short way through steps in which each request draws one more token, as nearly all steps are.

Twice a step vLLM asks each request for all that a request could be. Here one that goes on only gets its token; one that
is done, or of which a block is full, is left to vLLM, and so is a step in which more than that could happen.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

KNOWN = ("0.20.2", "0.32.0")
"""Versions of vLLM with which these steps were compared, by all that they leave behind."""
SPECIAL = ("connector", "ec_connector", "aux_output_connector", "lora_config", "use_pp", "use_v2_model_runner",
           "num_spec_tokens", "defer_block_free", "log_stats", "return_sampling_mask", "need_mamba_block_aligned_split")
"""What a scheduler may have that is not regarded here; no version has all of it."""


class Row(NamedTuple):
    """What stays the same of a plain request; kept on vLLM's own object, as its ``rlx_row``."""

    tokens: list[int]
    """Of prompt and completion, the scheduler's."""
    completion: list[int]
    """The scheduler's."""
    shown: list[int]
    """The completion, the output's: before it is done, nobody sees it, and it needs no more to be told."""
    stops: frozenset[int | None]
    prompt: int
    end: int
    """Tokens of prompt and completion with which it is done."""


def row_of(request: Any, state: Any, longest: int) -> Row | None:
    """Of a request and its output's state; None if there is anything to it that is not regarded here."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    params, shown, prompt = request.sampling_params, state.detokenizer, request.num_prompt_tokens
    if params is None or type(shown) is not IncrementalDetokenizer or (
            state.output_kind is not RequestOutputKind.FINAL_ONLY):
        return None
    special = (request.lora_request, request.mm_features, request.resumable, request.client_index,
               state.streaming_input, params.repetition_detection)
    asked = (request.structured_output_request, request.prompt_embeds, state.queue, state.stats, params.logprobs,
             params.prompt_logprobs, getattr(params, "num_logprobs", None))
    if any(special) or any(one is not None for one in asked):
        return None
    return Row(request._all_token_ids, request._output_token_ids, shown.token_ids,
               frozenset({*(params.stop_token_ids or ()), params.eos_token_id}),
               prompt, min(longest, prompt + request.max_tokens))


def shorten_steps(llm: Any) -> bool:
    """Of an engine with full attention in one group of blocks; false if it is not known, and stays as it was."""
    try:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        import vllm

        scheduler, outputs = llm.llm_engine.engine_core.engine_core.scheduler, llm.llm_engine.output_processor
        model, known = scheduler.vllm_config.model_config, vllm.__version__.startswith(KNOWN)
        if not known or type(scheduler) not in (Scheduler, AsyncScheduler) or outputs.log_stats or (
                any(getattr(scheduler, name, None) for name in SPECIAL) or model.is_encoder_decoder
                or getattr(model, "enable_return_routed_experts", False)):
            return False
        steps = Steps(scheduler, outputs.request_states, type(scheduler) is AsyncScheduler)
    except (ImportError, AttributeError, ValueError):
        return False
    scheduler.schedule, scheduler.update_from_output = steps.schedule, steps.update
    return True


class Steps:
    """In place of a scheduler's ``schedule`` and ``update_from_output``, which are its class's still."""

    def __init__(self, scheduler: Any, states: dict[str, Any], ahead: bool) -> None:
        """Keep the scheduler, the states of its requests' outputs, and whether it schedules before tokens are there."""
        from vllm.v1.core.sched.interface import PauseState

        self._scheduler, self._plain, self._states, self._ahead = scheduler, type(scheduler), states, ahead
        self._manager = scheduler.kv_cache_manager
        (self._blocks,) = self._manager.coordinator.single_type_managers
        self._most = min(scheduler.max_num_scheduled_tokens, scheduler.scheduler_config.max_num_batched_tokens)
        self._unpaused = PauseState.UNPAUSED

    def schedule(self, *args: Any) -> Any:
        """Each running request's next token: vLLM makes a step of no request, and they are put in."""
        scheduler, manager = self._scheduler, self._manager
        running = scheduler.running
        found = None if any(args) else self._rows(running)
        if found is None:
            return self._plain.schedule(scheduler, *args)
        requests, names, rare = found
        new = {request.request_id: manager.allocate_slots(request, 1).get_block_ids(allow_none=True)
               for request in rare}
        scheduler.running = []
        try:
            step = self._plain.schedule(scheduler, *args)
        finally:
            scheduler.running = running
        scheduler.prev_step_scheduled_req_ids.update(names)
        step.num_scheduled_tokens, step.total_num_scheduled_tokens = dict.fromkeys(names, 1), len(names)
        if step.num_common_prefix_blocks:
            step.num_common_prefix_blocks = manager.get_num_common_prefix_blocks(running[0].request_id)
        rows, ahead, counted = step.scheduled_cached_reqs, self._ahead, _counts(running[0])
        rows.req_ids, rows.new_block_ids = names, [new.get(name) for name in names]
        for request in requests:
            computed = request.num_computed_tokens
            rows.num_computed_tokens.append(computed)
            rows.num_output_tokens.append(computed + 1 - request.rlx_row.prompt)
            request.num_computed_tokens = computed + 1
            if ahead:
                request.num_output_placeholders += 1
            if counted:
                request.num_in_flight_tokens += 1
        return step

    def _rows(self, running: list[Any]) -> tuple[list[Any], list[str], list[Any]] | None:
        """Requests, their ids, and the requests of which a block begins or is full; None where it is vLLM's step."""
        scheduler, held, size = self._scheduler, self._blocks.req_to_blocks, self._blocks.block_size
        if not 0 < len(running) == len(scheduler.requests) or len(running) > self._most or (
                scheduler._pause_state is not self._unpaused):
            return None
        requests: list[Any] = []
        rare: list[Any] = []
        needed = 0
        for request in running:
            row, computed = getattr(request, "rlx_row", None), request.num_computed_tokens
            coming = request.num_output_placeholders
            known = computed + 1 - coming
            if not row or len(row.tokens) != known or coming > 1 or request.is_prefill_chunk:
                return None
            if coming and known + 1 >= row.end:
                continue  # its last token is on its way
            requests.append(request)
            if not computed % size or not known % size:
                rare.append(request)
                needed += computed >= len(held[request.request_id]) * size
        names = [request.request_id for request in requests]
        enough = needed <= self._manager.block_pool.get_num_free_blocks()
        known_there = scheduler.prev_step_scheduled_req_ids.issuperset(names)
        return (requests, names, rare) if enough and known_there else None

    def update(self, step: Any, result: Any) -> Any:
        """Each request's new token; vLLM sees those that are done with it, and all that are not plain."""
        scheduler, sampled, index = self._scheduler, result.sampled_token_ids, result.req_id_to_index
        requests, size, ahead = scheduler.requests, self._blocks.block_size, self._ahead
        rest: dict[str, int] = {}
        if not sampled or not requests or step.scheduled_spec_decode_tokens or result.num_nans_in_logits:
            return self._plain.update_from_output(scheduler, step, result)
        counted = _counts(next(iter(requests.values())))
        for name, count in step.num_scheduled_tokens.items():
            request = requests.get(name)
            row: Any = getattr(request, "rlx_row", False)
            if row is False:
                row = self._look(request)
            drawn = sampled[index[name]] if row else []
            known = len(row.tokens) + 1 if row else 0
            if len(drawn) != 1 or known >= row.end or drawn[0] in row.stops or request.num_preemptions:
                rest[name] = count
                continue
            row.tokens.append(drawn[0])
            row.completion.append(drawn[0])
            row.shown.append(drawn[0])
            if not known % size:
                request.update_block_hashes()
            if counted:
                request.num_in_flight_tokens -= 1
            if ahead:
                request.num_output_placeholders = coming = request.num_output_placeholders - 1
                if not (request.num_computed_tokens - coming) % size:
                    self._manager.cache_blocks(request, request.num_computed_tokens - coming)
        if len(rest) < len(step.num_scheduled_tokens):
            step = copy.copy(step)
            step.num_scheduled_tokens = rest
        return self._plain.update_from_output(scheduler, step, result)

    def _look(self, request: Any) -> Row | None:
        """Look at a request once its first token is out, which tells the output more than later ones do."""
        state = None if request is None else self._states.get(request.request_id)
        if state is None or state.is_prefilling:
            return None
        request.rlx_row = row_of(request, state, self._scheduler.max_model_len)
        row: Row | None = request.rlx_row
        return row


def _counts(request: Any) -> bool:
    """Whether this vLLM counts the tokens that are on their way."""
    return hasattr(request, "num_in_flight_tokens")
