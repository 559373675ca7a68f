"""Where tokens stand, what is shared, and what is refused."""

from __future__ import annotations

import pytest
import torch

from fpl_tune.clip.sentences import tokenise
from fpl_tune.core.errors import ConfigError


class Letters:
    """One token per letter: the smallest tokenizer."""

    sot, eot, n_positions = 900, 901, 16

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text if letter != " "]


A, B, C, DOT = ord("a"), ord("b"), ord("c"), ord(".")


@pytest.mark.parametrize(
    ("position", "slots"),
    [
        ("end", (900, -1, -2, -3, A, B, DOT, 901)),
        ("middle", (900, -1, A, B, -2, -3, DOT, 901)),
        ("front", (900, A, B, -1, -2, -3, DOT, 901)),
    ],
)
def test_position_of_the_name(position, slots):
    assert tokenise(Letters(), ["a_b"], 3, position=position).slots == (slots,)


def _layout(names, n_ctx, *, per_class=False, **options):
    sentences = tokenise(Letters(), names, n_ctx, **options)
    return sentences.layout(per_class=per_class, device=torch.device("cpu"))


def test_prefix_is_what_leads_all_sentences():
    layout = _layout(["ab", "ac", "abc"], 2)
    assert layout.n_prefix == 4  # SOS, two of context, "a"
    assert [(group.n_classes, group.length) for group in layout.groups] == [(2, 3), (1, 4)]
    assert layout.n_tokens == 4 + 3 + 3 + 4
    assert layout.ids.tolist() == [900, 0, 0, A, B, DOT, 901, C, DOT, 901, B, C, DOT, 901]
    assert layout.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 4, 5, 6, 7]
    assert layout.context.tolist() == [1, 2]
    assert layout.slot.tolist() == [0, 1]


def test_contexts_of_each_class_share_the_first_token_only():
    layout = _layout(["ab", "c"], 2, per_class=True)
    assert layout.n_prefix == 1
    assert layout.n_tokens == 1 + 5 + 6
    assert layout.owner.tolist() == [1, 1, 0, 0]
    assert layout.slot.tolist() == [0, 1, 0, 1]


def test_ends_are_eot_and_inverse_restores_the_order_of_the_classes():
    layout = _layout(["abc", "a", "cab", "b"], 1)
    assert set(layout.ids[layout.ends].tolist()) == {Letters.eot}
    last_letters = layout.ids[layout.ends - 2][layout.inverse]
    assert last_letters.tolist() == [C, A, B, B]


def test_longest_sentence_fits_and_one_more_is_refused():
    tokenise(Letters(), ["abc"], 10)
    with pytest.raises(ConfigError, match=r"'abc' has 17 tokens \(11 of them context\).* at most 16"):
        tokenise(Letters(), ["abc"], 11)
