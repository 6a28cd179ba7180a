"""The contract test of rollout backends; torch is imported when it is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlx_sdk.contracts import Fingerprint, Generation, Request, RolloutContext, Sampling
from rlx_sdk.plugins import RolloutPlugin
from rlx_sdk.testing.common import demand, options_of, owned

if TYPE_CHECKING:
    from torch import Tensor


def check_rollout(plugin: RolloutPlugin, context: RolloutContext, weights: Callable[[], Iterator[tuple[str, Tensor]]],
                  prompts: Sequence[Sequence[int]], options: Any = None) -> None:
    """Check what the trainer relies on.

    Every request answered once with its ``n`` completions of at most ``max_tokens`` tokens, each with its logprob, its
    reason and the weights' version; stop tokens at the end only; a request's completions decided by its seed, whatever
    requests are beside it; weights proven on every sync; generation after a release and the sync that always follows
    it; global generators left alone.

    Args:
        plugin: what the ``rlx_rollouts`` hook returns.
        context: what the backend is built from, with a small model.
        weights: gives all weights of that model by name, as often as it is called.
        prompts: at least three prompts as token ids.
        options: a mapping, or an object of the plugin's class; default: every option's default.

    Raises:
        AssertionError: what was given, what came back, and what to change.
    """
    import torch

    demand(isinstance(plugin, RolloutPlugin), f"check_rollout was given {plugin!r:.80}. Give it the RolloutPlugin that "
           "your rlx_rollouts hook returns.")
    name = f"rollout backend '{plugin.name}'"
    made = options_of(name, plugin, options)
    with owned(name, "when built", "build(options, context) must return a RolloutBackend"):
        backend = plugin.build(made, context)
    check = _Check(name, backend, context, weights)
    try:
        check.sync(0)
        requests = [Request(tuple(prompt), Sampling(1.0, 1.0, 4 + 2 * i), 1 + i, 100 + i)
                    for i, prompt in enumerate(prompts[:3])]
        state = torch.get_rng_state()
        first = check.generate(requests, 0)
        demand(torch.equal(state, torch.get_rng_state()), f"{name}: it drew from torch's global generator; a run could "
               "then not be resumed exactly, so use a generator of your own for each request's seed.")
        check.same(first, check.generate(requests, 0), "the same requests twice")
        check.same(first, check.generate(requests[::-1], 0)[::-1], "the same requests in another order")
        check.same(first, [check.generate([r], 0)[0] for r in requests], "each request alone")
        others = check.generate([Request(r.tokens, r.sampling, r.n, r.seed + 1) for r in requests], 0)
        demand([[g.tokens for g in gs] for gs in others] != [[g.tokens for g in gs] for gs in first],
               f"{name}, given other seeds: it gave the same completions; draw by the request's seed.")
        demand(check.generate([], 0) == [], f"{name}, given no request: it gave completions.")
        check.sync(1)
        check.generate(requests, 1)
    finally:
        with owned(name, "when closed", "make close() harmless"):
            backend.close()


class _Check:
    """The backend in test."""

    def __init__(self, name: str, backend: Any, context: RolloutContext,
                 weights: Callable[[], Iterator[tuple[str, Tensor]]]) -> None:
        self.name, self.backend, self.context, self.weights = name, backend, context, weights

    def sync(self, version: int) -> None:
        with owned(self.name, "given weights", "sync(weights, version) must take them all, one at a time"):
            found = self.backend.sync(self.weights(), version)
        if found is None:
            return
        sent = [tensor.detach().double() for _, tensor in self.weights()]
        total, squares = sum(float(t.sum()) for t in sent), sum(float((t * t).sum()) for t in sent)
        demand(isinstance(found, Fingerprint) and math.isclose(found.total, total, rel_tol=1e-3, abs_tol=1e-2)
               and math.isclose(found.total_squares, squares, rel_tol=1e-3), f"{self.name}, given weights: it reports "
               f"{found}; Σw = {total} and Σw² = {squares} were sent, so its weights are not those.")

    def generate(self, requests: Sequence[Request], version: int) -> list[list[Generation]]:
        given = f"given {len(requests)} requests"
        with owned(self.name, given, "generate(requests) must yield (index, generations)"):
            pairs = list(self.backend.generate(requests))
            self.backend.release()
        self.sync(version)  # a backend may have given its weights back
        demand(sorted(i for i, _ in pairs) == list(range(len(requests))), f"{self.name}, {given}: it answered "
               f"{[i for i, _ in pairs]}; every index is wanted once.")
        found = [generations for _, generations in sorted(pairs, key=lambda pair: pair[0])]
        for request, generations in zip(requests, found, strict=True):
            demand(len(generations) == request.n, f"{self.name}, {given}: it gave {len(generations)} completions "
                   f"where n is {request.n}.")
            for generation in generations:
                self._check(request, generation, version)
        return found

    def _check(self, request: Request, one: Generation, version: int) -> None:
        tokens, stops = list(one.tokens), self.context.stop_token_ids
        demand(1 <= len(tokens) <= request.sampling.max_tokens, f"{self.name}: a completion has {len(tokens)} tokens; "
               f"1 to max_tokens = {request.sampling.max_tokens} are wanted.")
        demand(len(one.logprobs) == len(tokens) and all(math.isfinite(p) and p < 1e-4 for p in one.logprobs),
               f"{self.name}: the logprobs of {len(tokens)} tokens are {list(one.logprobs)!r:.80}; one finite number "
               "≤ 0 a token is wanted.")
        demand(not set(tokens[:-1]) & set(stops), f"{self.name}: a completion goes on after a stop token: {tokens}.")
        reason = "stop" if tokens[-1] in stops else "length"
        demand(one.finish_reason == reason, f"{self.name}: a completion that ends in token {tokens[-1]} has the finish "
               f"reason '{one.finish_reason}'; '{reason}' is wanted.")
        demand(one.version == version, f"{self.name}: a completion has version {one.version}; the last sync was "
               f"{version}.")

    def same(self, first: Sequence[Sequence[Generation]], second: Sequence[Sequence[Generation]], given: str) -> None:
        """The same tokens."""
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            demand([list(g.tokens) for g in a] == [list(g.tokens) for g in b], f"{self.name}, given {given}: request "
                   f"{i + 1} gave other completions; its seed alone must decide them.")
