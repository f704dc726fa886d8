"""A batch of rollouts: problems, completions, rewards, and what is measured on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gsmrl_helpers.engine import Completion, RolloutEngine
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.prompting import Prompt
from gsmrl_helpers.rewards import compute_rollout_rewards
from gsmrl_helpers.sampling import SamplingParams
from gsmrl_helpers.step_metrics import rollout_metrics

_LISTS = ("problems", "prompts", "completions")
_TENSORS = ("rewards", "format_rewards", "answer_rewards")


@dataclass(frozen=True)
class Rollouts:
    """B = P·G graded completions, prompt-major: those of a problem stand side by side.

    Attributes:
        problems: B problems, each repeated G times.
        prompts: B texts that the policy saw.
        completions: B completions.
        rewards, format_rewards, answer_rewards: (B,) float32.
        group_size: G.
    """

    problems: list[Problem]
    prompts: list[str]
    completions: list[Completion]
    rewards: Tensor
    format_rewards: Tensor
    answer_rewards: Tensor
    group_size: int

    def select_groups(self, groups: Sequence[int]) -> Rollouts:
        """The rollouts of these groups alone, numbered from 0, in the order given."""
        size = self.group_size
        rows = [row for group in groups for row in range(group * size, (group + 1) * size)]
        return Rollouts(
            **{name: [getattr(self, name)[row] for row in rows] for name in _LISTS},
            **{name: getattr(self, name)[rows] for name in _TENSORS},
            group_size=size,
        )

    def metrics(self) -> dict[str, float | None]:
        """The metrics of `step_metrics.rollout_metrics`, and the share cut off by the limit."""
        lengths = torch.tensor([len(c.token_ids) for c in self.completions])
        graded = rollout_metrics(
            self.rewards, self.format_rewards, self.answer_rewards, lengths, self.group_size
        )
        truncated = [c.finish_reason == "length" for c in self.completions]
        return {**graded, "truncated_share": sum(truncated) / len(truncated)}

    def rows(self) -> list[dict[str, object]]:
        """One row a completion, to be written down and read by people."""
        graded = zip(
            *(self.problems, self.completions),
            *(self.rewards.tolist(), self.format_rewards.tolist(), self.answer_rewards.tolist()),
            strict=True,
        )
        return [
            {
                "question": problem.question,
                "gold": problem.gold,
                "response": completion.text,
                "token_ids": completion.token_ids,
                "finish_reason": completion.finish_reason,
                "reward": reward,
                "format_reward": format_reward,
                "answer_reward": answer_reward,
            }
            for problem, completion, reward, format_reward, answer_reward in graded
        ]


def join_rollouts(batches: Sequence[Rollouts]) -> Rollouts:
    """Several batches of rollouts, of one group size, as one."""
    return Rollouts(
        **{name: [row for batch in batches for row in getattr(batch, name)] for name in _LISTS},
        **{name: torch.cat([getattr(batch, name) for batch in batches]) for name in _TENSORS},
        group_size=batches[0].group_size,
    )


def sample_rollouts(
    engine: RolloutEngine,
    prompt: Prompt,
    problems: Sequence[Problem],
    *,
    group_size: int,
    seed: int,
    temperature: float,
    top_p: float,
    max_tokens: int,
) -> Rollouts:
    """Sample `group_size` answers to each problem and grade them with the prompt's reward."""
    texts = [prompt.format(problem.question) for problem in problems]
    params = SamplingParams(
        n=group_size,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=prompt.stop,
        include_stop_str_in_output=prompt.include_stop_str_in_output,
        seed=seed,
    )
    completions = engine.generate_completions(texts, params)
    repeated = [problem for problem in problems for _ in range(group_size)]
    rewards, metadata = compute_rollout_rewards(
        prompt.reward_fn, [c.text for c in completions], [p.gold for p in repeated]
    )
    return Rollouts(
        problems=repeated,
        prompts=[text for text in texts for _ in range(group_size)],
        completions=completions,
        rewards=rewards,
        format_rewards=metadata["format_rewards"],
        answer_rewards=metadata["answer_rewards"],
        group_size=group_size,
    )
