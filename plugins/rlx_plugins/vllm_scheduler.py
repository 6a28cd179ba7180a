"""Spare vLLM's scheduler what it does for every token and in most cases for nothing: a quarter of its work."""

from __future__ import annotations

from typing import Any

from rlx_plugins.vllm_steps import shorten_steps


def shorten(llm: Any) -> bool:
    """Make the two calls of an engine in this process return at once where they would find nothing to do.

    These are ``allocate_slots``, where a request's last block has room for its next token, and ``cache_blocks``; both
    only if no block becomes full by it. That is so of full attention in one group of blocks, hashed as they are: other
    kinds drop blocks with each token, or note parts of them. False if the engine is not so, and stays as it was. Steps
    in which nothing else happens are then made short as a whole (vllm_steps.py), if that scheduler is known.
    """
    try:
        from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        manager = scheduler.kv_cache_manager
        (blocks,), nothing = manager.coordinator.single_type_managers, manager.empty_kv_cache_blocks
        held, cached, size = blocks.req_to_blocks, blocks.num_cached_block, blocks.block_size
        allocate_slots, cache_blocks = manager.allocate_slots, manager.cache_blocks
        known = type(blocks) is FullAttentionManager and manager.block_pool.hash_block_size == size
        if not known or scheduler.connector is not None:
            return False
    except (ImportError, AttributeError, ValueError):
        return False

    def allocate(request: Any, num_new_tokens: int, *other: Any, num_lookahead_tokens: int = 0, **others: Any) -> Any:
        """Of a request that goes on, nothing but its tokens is given."""
        if num_new_tokens == 1 and not (num_lookahead_tokens or other or others):
            name, end = request.request_id, request.num_computed_tokens + 1
            if end <= len(held.get(name, ())) * size and end < (cached.get(name, 0) + 1) * size:
                return nothing
        return allocate_slots(request, num_new_tokens, *other, num_lookahead_tokens=num_lookahead_tokens, **others)

    def cache(request: Any, num_computed_tokens: int) -> None:
        if num_computed_tokens >= (cached.get(request.request_id, 0) + 1) * size:
            cache_blocks(request, num_computed_tokens)

    manager.allocate_slots, manager.cache_blocks = allocate, cache
    shorten_steps(llm)
    return True
