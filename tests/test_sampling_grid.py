"""The pocket policy's tokens, whatever the batch size, with and without compaction and sharing."""

from itertools import product

import pytest

from gsmrl_helpers import LocalEngine, SamplingParams, experiment_config, load_policy, load_problems


@pytest.mark.full
@pytest.mark.timeout(600)
def test_nothing_about_batching_changes_a_token_of_the_pocket_policy() -> None:
    config = experiment_config("on-policy", overrides={"splits": {"dev": 12}})
    model, tokenizer = load_policy(config)
    model = model.double()  # in float32, batches of different shape round differently
    prompt = config.prompt_object()
    prompts = [prompt.format(problem.question) for problem in load_problems(config, "dev")]
    params = SamplingParams(n=6, max_tokens=48, stop=prompt.stop, seed=11)

    def sample(size: int, compaction: bool, sharing: bool) -> list[list[int]]:
        engine = LocalEngine(model, tokenizer, compaction=compaction, prefix_sharing=sharing)
        return [c.token_ids for c in engine.generate_completions(prompts, params, size)]

    expected = sample(64, True, True)
    assert len({tuple(tokens) for tokens in expected}) > 60  # draws, not copies
    for size, compaction, sharing in product((1, 7, 64), (True, False), (True, False)):
        assert sample(size, compaction, sharing) == expected, (size, compaction, sharing)
