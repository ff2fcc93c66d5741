"""Where a completion ends at a stop text, whose tokens stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class StopTexts:
    """Example: StopTexts(("</answer>",), chat.detokenize).find_end(token_ids, first=0)"""

    def __init__(self, texts: Sequence[str], detokenize: Callable[[Sequence[int]], str]) -> None:
        self.texts = texts
        self._detokenize = detokenize
        # A token that says something says one byte at least.
        self._reach = max((len(text.encode()) for text in texts), default=0)

    def find_end(self, token_ids: Sequence[int], first: int) -> int | None:
        """The number of tokens up to the one that completes a stop text, with it; None where there is none.

        Before token `first` none was complete.
        """
        begin = max(0, first - self._reach)
        if not self.texts or not self._has_one(token_ids[begin:]):
            return None
        ends = range(first + 1, len(token_ids) + 1)
        return next((end for end in ends if self._has_one(token_ids[begin:end])), None)

    def _has_one(self, token_ids: Sequence[int]) -> bool:
        said = self._detokenize(token_ids)
        return any(text in said for text in self.texts)
