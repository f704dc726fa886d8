"""The sizes of a language model that decide its memory and time, and its number of parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ModelShape(BaseModel):
    """The shape of a decoder as transformers builds it; names in brackets are its config's.

    Attributes:
        architecture: "olmo2" normalises queries, keys and what each half of a layer adds; "qwen2"
            normalises what goes into each half, and its queries, keys and values have a bias.
        vocab_size: V.
        hidden_size: D, the width of the residual stream.
        intermediate_size: F, the width inside the MLP.
        n_layers: N (num_hidden_layers).
        n_heads: heads of queries (num_attention_heads).
        n_kv_heads: heads of keys and values (num_key_value_heads).
        head_dim: width of a head.
        tied: the embedding serves as head, too (tie_word_embeddings).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: Literal["olmo2", "qwen2"]
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    n_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    tied: bool

    @property
    def query_width(self) -> int:
        """All heads' queries of a token, side by side."""
        return self.n_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """All heads' keys of a token, side by side; values are as wide."""
        return self.n_kv_heads * self.head_dim

    @property
    def linear_sizes(self) -> list[tuple[int, int]]:
        """(in, out) of a layer's seven matrices: queries, keys, values, output, gate, up, down."""
        d, f, q, kv = self.hidden_size, self.intermediate_size, self.query_width, self.kv_width
        return [(d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d)]

    @property
    def n_matrix_parameters(self) -> int:
        """Parameters that every token is multiplied with: the layers' matrices and the head."""
        of_a_layer = sum(n_in * n_out for n_in, n_out in self.linear_sizes)
        return self.n_layers * of_a_layer + self.vocab_size * self.hidden_size

    @property
    def n_parameters(self) -> int:
        """All parameters: matrices, norms, biases, and the embedding where it is not the head."""
        d, q, kv = self.hidden_size, self.query_width, self.kv_width
        norms_and_biases = {"olmo2": q + kv + 2 * d, "qwen2": 2 * d + q + 2 * kv}
        embedding = 0 if self.tied else self.vocab_size * d
        return (
            self.n_matrix_parameters
            + self.n_layers * norms_and_biases[self.architecture]
            + d  # the last norm
            + embedding
        )

    @property
    def largest_parameter(self) -> int:
        """Elements of the largest tensor: the head, or a matrix of the MLP."""
        return max(self.vocab_size, self.intermediate_size) * self.hidden_size

    def n_lora_parameters(self, rank: int) -> int:
        """Parameters of adapters of this rank on every matrix of the layers (Hu et al., 2021)."""
        return self.n_layers * sum(rank * (n_in + n_out) for n_in, n_out in self.linear_sizes)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ModelShape:
        """The shape that a model's `config.json` describes.

        Raises:
            ValueError: an architecture that the planner does not know.
        """
        if config.get("model_type") not in ("olmo2", "qwen2"):
            raise ValueError(
                f"model_type={config.get('model_type')!r} is unknown to the planner; allowed: "
                "olmo2, qwen2"
            )
        heads = config["num_attention_heads"]
        return cls(
            architecture=config["model_type"],
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            n_layers=config["num_hidden_layers"],
            n_heads=heads,
            n_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            tied=config.get("tie_word_embeddings", False),
        )


# The two policies from the Hub that profiles name, as their config.json says.
KNOWN_SHAPES = {
    "allenai/OLMo-2-0425-1B": ModelShape(
        architecture="olmo2",
        vocab_size=100_352,
        hidden_size=2048,
        intermediate_size=8192,
        n_layers=16,
        n_heads=16,
        n_kv_heads=16,
        head_dim=128,
        tied=False,
    ),
    "Qwen/Qwen2.5-0.5B": ModelShape(
        architecture="qwen2",
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        n_layers=24,
        n_heads=14,
        n_kv_heads=2,
        head_dim=64,
        tied=True,
    ),
}


def model_shape(policy: Path | str) -> ModelShape:
    """The shape of a policy in a folder, or of one that is known by its name on the Hub.

    Raises:
        ValueError: neither; the message lists the known names.
    """
    file = Path(policy) / "config.json"
    if file.is_file():
        return ModelShape.from_config(json.loads(file.read_text()))
    if str(policy) not in KNOWN_SHAPES:
        raise ValueError(
            f"policy={str(policy)!r} is no folder with a config.json, and its shape is not known; "
            f"known: {', '.join(KNOWN_SHAPES)}"
        )
    return KNOWN_SHAPES[str(policy)]
