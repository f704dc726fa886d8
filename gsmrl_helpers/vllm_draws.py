"""From prompts to requests: one for each group, each with a seed of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from gsmrl_helpers.engine import Completion
from gsmrl_helpers.sampling import SamplingParams, derive_seed
from gsmrl_helpers.vllm_client import ServerDiedError, ServerResponseError, VLLMClient

REQUESTS_AT_ONCE = 256

TokenIds = tuple[int, ...]


class Draws(NamedTuple):
    """Draws number `first` to `first + count - 1` of one prompt: one request."""

    prompt_ids: TokenIds
    first: int
    count: int


def draw_all(
    client: VLLMClient, times: Counter[TokenIds], params: SamplingParams, batch_size: int | None
) -> dict[TokenIds, list[Completion]]:
    """Draw n completions for each time that a prompt occurs.

    A prompt is one request for all its draws, not one request a draw: vLLM gives the draws of a
    request the seeds s, s + 1, …, while requests with one seed all get the same answer. The seed s
    follows from that of the call and the prompt.

    Args:
        client: the server's.
        times: how often each prompt occurs.
        params: how to sample.
        batch_size: most draws at a time; None is all at once.

    Returns:
        The draws of each prompt, in their order.
    """
    if params.temperature == 0:  # all draws are the same one, and vLLM refuses to make several
        requests = [Draws(prompt_ids, 0, 1) for prompt_ids in times]
        once = draw_requests(client, requests, params, batch_size)
        return {ids: once[ids] * (params.n * count) for ids, count in times.items()}
    requests = [
        Draws(prompt_ids, first, min(size, params.n * count - first))
        for prompt_ids, count in times.items()
        for size in [batch_size or params.n * count]
        for first in range(0, params.n * count, size)
    ]
    return draw_requests(client, requests, params, batch_size)


def draw_requests(
    client: VLLMClient, requests: list[Draws], params: SamplingParams, batch_size: int | None
) -> dict[TokenIds, list[Completion]]:
    """Send the requests, in batches, and put their draws together by prompt."""
    drawn: dict[TokenIds, list[Completion]] = {}
    for batch in batches(requests, batch_size):
        for request, completions in zip(batch, draw_batch(client, batch, params), strict=True):
            drawn.setdefault(request.prompt_ids, []).extend(completions)
    return drawn


def batches(requests: list[Draws], size: int | None) -> Iterator[list[Draws]]:
    """The requests in order, in batches of at most `size` draws; None makes one batch."""
    batch: list[Draws] = []
    for request in requests:
        if size is not None and batch and sum(r.count for r in batch) + request.count > size:
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch


def draw_batch(
    client: VLLMClient, batch: list[Draws], params: SamplingParams
) -> list[list[Completion]]:
    """Send requests at the same time; the first error ends the batch."""
    with ThreadPoolExecutor(min(len(batch), REQUESTS_AT_ONCE)) as pool:
        futures = [pool.submit(draw, client, request, params) for request in batch]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def draw(client: VLLMClient, request: Draws, params: SamplingParams) -> list[Completion]:
    """The draws of one request.

    Raises:
        ServerDiedError: also where only the engine behind the server is dead (HTTP 5xx).
        ServerResponseError: see `VLLMClient.complete`.
    """
    # Half of the range is left for the numbers of the draws, which vLLM adds.
    seed = derive_seed(params.seed, *request.prompt_ids) // 2 + request.first
    try:
        return client.complete(request.prompt_ids, request.count, seed, params)
    except ServerResponseError as error:
        if error.status is not None and error.status >= 500:
            raise ServerDiedError(str(error)) from error
        raise
