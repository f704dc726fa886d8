"""A reward model: a policy's body with one number in the place of logits, trained on pairs."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gsmrl_helpers.engine import evaluation_mode
from gsmrl_helpers.live import live
from gsmrl_helpers.options import require_number, require_positive_integer
from gsmrl_helpers.preferences import PreferencePair, bradley_terry_loss
from gsmrl_helpers.response_scoring import response_hidden_states
from gsmrl_helpers.tokenization import encode, padding_token_id, tokenize_prompt_and_output

MAX_GRAD_NORM = 1.0


class RewardModel(nn.Module):
    """A policy's body and a head that reads one number off a response's last token.

    The body is a copy: training it leaves the policy alone. The head starts at 0, so that an
    untrained reward model scores everything 0.

    Args:
        policy: the model that the body is taken from, its head left out.
        tokenizer: the policy's.
    """

    def __init__(self, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy).eval()
        self.body.lm_head = nn.Identity()
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.tokenizer = tokenizer

    def features(self, input_ids: Tensor, response_mask: Tensor) -> Tensor:
        """(B, D) float32, the body's hidden state at each row's last token that counts."""
        hidden = response_hidden_states(self.body, input_ids, response_mask)  # (M, D)
        return hidden[response_mask.sum(dim=1).cumsum(dim=0) - 1].float()

    def forward(self, input_ids: Tensor, response_mask: Tensor) -> Tensor:
        """Scores of the rows that `batch` returns, (B,) float32, with gradient."""
        return self.head(self.features(input_ids, response_mask)).squeeze(-1)

    def batch(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, Tensor]:
        """The rows as `forward` wants them: `input_ids` (B, T) and a bool `response_mask` (B, T).

        A token that no one reads is appended to each response, so that the last position under the
        mask is that of the last token that counts; of an empty response it is the prompt's.
        """
        end = padding_token_id(self.tokenizer)
        ids = [[*encode(self.tokenizer, response), end] for response in responses]
        rows = tokenize_prompt_and_output(prompts, responses, self.tokenizer, output_token_ids=ids)
        device = self.head.weight.device
        return {name: rows[name].to(device) for name in ("input_ids", "response_mask")}

    @torch.no_grad()
    def score(self, prompts: Sequence[str], responses: Sequence[str], at_once: int = 256) -> Tensor:
        """The scores of B responses: what a training loop takes as `raw_rewards`.

        Args:
            prompts: B texts, as the policy saw them; a group repeats its prompt.
            responses: B texts.
            at_once: rows that go through the model together.

        Returns:
            (B,) float32 on the CPU, without gradient.

        Raises:
            ValueError: no rows, unequal numbers of them, or an empty prompt.
        """
        if len(prompts) != len(responses) or not prompts:
            raise ValueError(
                f"prompts and responses must be equally many, and at least one: got "
                f"{len(prompts)} prompts and {len(responses)} responses"
            )
        starts = range(0, len(prompts), at_once)
        with evaluation_mode(self):
            scores = [
                self(**self.batch(prompts[i : i + at_once], responses[i : i + at_once]))
                for i in starts
            ]
        return torch.cat(scores).cpu()


def pair_scores(model: RewardModel, pairs: Sequence[PreferencePair]) -> tuple[Tensor, Tensor]:
    """Scores of the chosen and of the rejected answers, (P,) each, with gradient.

    An answer that stands in several pairs goes through the model once.
    """
    chosen = [(pair.prompt, pair.chosen) for pair in pairs]
    rejected = [(pair.prompt, pair.rejected) for pair in pairs]
    place = {row: n for n, row in enumerate(dict.fromkeys(chosen + rejected))}
    scores = model(**model.batch(*map(list, zip(*place, strict=True))))
    return scores[[place[row] for row in chosen]], scores[[place[row] for row in rejected]]


def train_reward_model(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[PreferencePair],
    *,
    n_epochs: int = 2,
    prompts_per_step: int = 8,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> tuple[RewardModel, list[float]]:
    """Fit a reward model to pairs by the Bradley-Terry loss; all pairs of a prompt in one step.

    Pairs of a prompt share answers. In one step they are scored once, and an answer is not met
    again in another step of the epoch (Ouyang et al., 2022, section 3.5). AdamW, its learning rate
    falling linearly to 0. At the end the bias is set so that the mean score over the pairs is 0:
    the loss does not depend on it.

    Args:
        policy: where the body starts; it is copied.
        tokenizer: the policy's.
        pairs: what is chosen over what.
        n_epochs: passes over the prompts.
        prompts_per_step: prompts whose pairs make one step.
        learning_rate: of the first step, above 0.
        seed: of the order of the prompts.

    Returns:
        The reward model, in evaluation mode, and the mean loss of each step's pairs, in nats.

    Raises:
        ValueError: no pairs, or a number out of range.
    """
    if not pairs:
        raise ValueError("pairs is empty: a reward model needs at least one comparison")
    require_positive_integer("n_epochs", n_epochs)
    require_positive_integer("prompts_per_step", prompts_per_step)
    require_number("learning_rate", learning_rate, 0, above=True)
    model = RewardModel(policy, tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    steps = [
        step for epoch in range(n_epochs) for step in shuffled(pairs, prompts_per_step, seed, epoch)
    ]
    losses = []
    for number, step in enumerate(live(steps)):
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - number / len(steps))
        loss = bradley_terry_loss(*pair_scores(model, step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    prompts, responses = zip(*rows_of(pairs), strict=True)
    with torch.no_grad():
        model.head.bias -= model.score(prompts, responses).mean().to(model.head.bias)
    return model.eval(), losses


def shuffled(
    pairs: Sequence[PreferencePair], prompts_per_step: int, seed: int, epoch: int
) -> list[list[PreferencePair]]:
    """The pairs of an epoch's steps: those of a prompt together, the prompts in a drawn order."""
    by_prompt: dict[str, list[PreferencePair]] = {}
    for pair in pairs:
        by_prompt.setdefault(pair.prompt, []).append(pair)
    prompts = list(by_prompt)
    random.Random(f"reward model, {seed}, epoch {epoch}").shuffle(prompts)
    return [
        [pair for prompt in prompts[start : start + prompts_per_step] for pair in by_prompt[prompt]]
        for start in range(0, len(prompts), prompts_per_step)
    ]


def rows_of(pairs: Sequence[PreferencePair]) -> list[tuple[str, str]]:
    """(prompt, response) of the 2 P answers: first the chosen ones, then the rejected."""
    chosen = [(pair.prompt, pair.chosen) for pair in pairs]
    return chosen + [(pair.prompt, pair.rejected) for pair in pairs]


def pairs_ranked_right(model: RewardModel, pairs: Sequence[PreferencePair]) -> Tensor:
    """(P,) bool: whether the chosen answer has the higher score; a tie is no ranking."""
    prompts, responses = zip(*rows_of(pairs), strict=True)
    chosen, rejected = model.score(prompts, responses).chunk(2)
    return chosen > rejected
