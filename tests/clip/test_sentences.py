"""Where tokens stand, what is shared, and what is refused."""

from __future__ import annotations

import pytest

from fpl_tune.clip.sentences import tokenise
from fpl_tune.errors import ConfigError


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


def test_prefix_is_what_leads_all_sentences():
    sentences = tokenise(Letters(), ["ab", "ac", "abc"], 2)
    layout = sentences.shared
    assert layout.n_prefix == 4  # SOS, two of context, "a"
    assert [(group.classes, group.length) for group in layout.groups] == [((0, 1), 3), ((2,), 4)]
    assert layout.n_prefix + layout.n_suffix == 4 + 3 + 3 + 4
    assert sentences.per_class.n_prefix == 1  # contexts differ, only SOS leads all


def test_prefix_leaves_every_class_its_eot():
    assert tokenise(Letters(), ["a", "a"], 2).shared.n_prefix == 5
    assert tokenise(Letters(), ["a", "ab"], 2, ending="").shared.n_prefix == 4


def test_inverse_restores_the_order_of_the_classes():
    layout = tokenise(Letters(), ["abc", "a", "cab", "b"], 1).shared
    order = [k for group in layout.groups for k in group.classes]
    assert [order[place] for place in layout.inverse] == [0, 1, 2, 3]


def test_longest_sentence_fits_and_one_more_is_refused():
    tokenise(Letters(), ["abc"], 10)
    with pytest.raises(ConfigError, match=r"'abc' has 17 tokens \(11 of them context\).* at most 16"):
        tokenise(Letters(), ["abc"], 11)


@pytest.mark.parametrize(
    ("names", "n_ctx", "position", "message"),
    [
        ([], 2, "end", "no class names"),
        (["a"], -1, "end", "at least 0, not -1"),
        (["a"], 2, "back", "not 'back'"),
    ],
)
def test_bad_sentences(names, n_ctx, position, message):
    with pytest.raises(ConfigError, match=message):
        tokenise(Letters(), names, n_ctx, position=position)
