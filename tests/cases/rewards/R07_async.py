"""Asynchronous rewards, as for a judge behind HTTP."""

import asyncio

from rlx_sdk import reward


@reward("case_async")
async def declared(samples):
    await asyncio.sleep(0.01)
    return [float(len(s.completion)) for s in samples]


@reward("case_async_hidden")
def hidden(samples):
    """A plain function that returns a coroutine."""

    async def go():
        await asyncio.sleep(0)
        return [float(len(s.completion)) for s in samples]

    return go()
