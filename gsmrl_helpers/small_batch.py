"""The batch that chapters 08 to 12 carry through: two prompts, four responses each, all by hand.

Its policy looks at one token only, the last: a table says what may follow. Every log-probability
is then the logarithm of a number in that table, and every gradient an entry minus a probability.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

VOCABULARY = ("<eos>", "1", "2", "3", "+", "=", "so", "4", "5", ".")

# After these tokens, and only these, the policy chooses; after all others anything is as likely.
NEXT_TOKEN_PROBS: Mapping[str, Mapping[str, float]] = {
    "=": {"so": 0.5, "4": 0.25, "5": 0.25},
    "so": {"4": 0.5, "5": 0.25, "so": 0.25},
    "4": {".": 0.8, "<eos>": 0.2},
    "5": {".": 0.8, "<eos>": 0.2},
    ".": {"<eos>": 0.5, "so": 0.5},
}

PROMPTS = ("2 + 2 =", "1 + 1 + 3 =")
GROUND_TRUTHS = ("4", "5")
GROUP_SIZE = 4
RESPONSES = (
    # the first prompt's group: right, wrong, wrong, right
    "so 4 . <eos>",
    "so 5 .",
    "5 .",
    "4 .",
    # the second's: right, wrong, wrong, wrong
    "5 .",
    "4",
    "so so 4 .",
    "4 .",
)

repeated_prompts = [prompt for prompt in PROMPTS for _ in range(GROUP_SIZE)]
repeated_ground_truths = [truth for truth in GROUND_TRUTHS for _ in range(GROUP_SIZE)]
rollout_responses = list(RESPONSES)


class TablePolicy(nn.Module):
    """A causal language model whose next token depends on the present token alone.

    Its one parameter is the table of logits, (V, V): row `v` belongs to the present token `v`. It
    is called as a transformers model is, `policy(input_ids).logits`.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits)

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        """Logits of shape (B, T, V) for token ids of shape (B, T)."""
        return SimpleNamespace(logits=self.table[input_ids])


def make_policy() -> TablePolicy:
    """The policy of `NEXT_TOKEN_PROBS`, in float64: its logits are the logarithms of the table.

    A token that can't follow has the logit -40, a probability of 4e-18: less than float64 sees
    beside 1, and finite.
    """
    probs = torch.full((len(VOCABULARY), len(VOCABULARY)), 1 / len(VOCABULARY), dtype=torch.float64)
    for token, next_probs in NEXT_TOKEN_PROBS.items():
        probs[VOCABULARY.index(token)] = torch.tensor(
            [next_probs.get(name, 0.0) for name in VOCABULARY], dtype=torch.float64
        )
    return TablePolicy(probs.log().clamp(min=-40.0))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word between spaces; it pads with its end-of-sequence token."""
    vocabulary = {name: index for index, name in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def last_number_reward_fn(response: str, ground_truth: str) -> dict[str, float]:
    """1 if the last number is the ground truth and there is a full stop, which alone is the format.

    As in the assignment, the reward is the answer's; the format is only logged.
    """
    ends = float("." in response.split())
    numbers = re.findall(r"\d+", response)
    right = ends * float(bool(numbers) and numbers[-1] == ground_truth)
    return {"reward": right, "format_reward": ends, "answer_reward": right}
