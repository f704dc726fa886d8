"""Where a completion ends: stop strings in text that arrives token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase


def decode_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """The text of token ids: special tokens left out, spaces as they are."""
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class StopStrings:
    """Finds stop strings, also those that span tokens, without decoding at every token.

    A token can complete a stop string only if its own text contains the string or starts with an
    end of it. That is one table look-up per token; only rows that pass it are decoded, and of these
    only the last tokens.

    Args:
        tokenizer: Turns ids into text; byte-level BPE and SentencePiece alike.
        vocab_size: Number of ids that the model can emit.
        stop: Stop strings, none of them empty.
        include_in_output: Whether the text keeps the stop string.

    Attributes:
        may_complete: (vocab,) bool, whether a token can be the one that completes a stop string.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocab_size: int,
        stop: Sequence[str],
        include_in_output: bool,
    ) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.include_in_output = include_in_output
        self.special_ids = frozenset(tokenizer.all_special_ids)
        # A token that is not special has at least one byte of text, so a string of b bytes ends at
        # most b tokens back; four more, so that no character is cut at the window's left edge.
        self.window = max((len(s.encode()) for s in self.stop), default=0) + 4
        self.may_complete = np.array(
            [self._may_complete(text) for text in self._token_texts(vocab_size)], dtype=bool
        )

    def _token_texts(self, vocab_size: int) -> list[str]:
        """Each token's text as it reads inside a text: SentencePiece drops a leading space."""
        if not self.stop:
            return [""] * vocab_size
        anchor = self.tokenizer.encode("a", add_special_tokens=False)[-1:]
        anchor_length = len(decode_text(self.tokenizer, anchor))
        pairs = self.tokenizer.batch_decode(
            [[*anchor, token_id] for token_id in range(vocab_size)],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return [text[anchor_length:] for text in pairs]

    def _may_complete(self, token_text: str) -> bool:
        for stop in self.stop:
            ends = (stop[start:] for start in range(len(stop)))
            if stop in token_text or any(token_text.startswith(end) for end in ends):
                return True
            # Bytes of a character that is not whole yet decode to U+FFFD.
            if not stop.isascii() and "\ufffd" in token_text:
                return True
        return False

    def find(self, token_ids: Sequence[int]) -> str | None:
        """The text up to the first stop string, or None where there is no stop string yet.

        Args:
            token_ids: All ids of the completion so far.

        Returns:
            The decoded text, cut after the stop string if it is kept and before it if not.
        """
        tail = token_ids[-self.window :]
        if self.special_ids.isdisjoint(tail):
            tail_text = decode_text(self.tokenizer, tail)
            if not any(stop in tail_text for stop in self.stop):
                return None
        text = decode_text(self.tokenizer, token_ids)
        found = [(text.find(stop), stop) for stop in self.stop if stop in text]
        if not found:
            return None
        # Where two begin at one place the shorter one was complete first.
        start, stop = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
        return text[: start + len(stop) if self.include_in_output else start]
