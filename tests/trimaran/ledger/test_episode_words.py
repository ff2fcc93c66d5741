"""An episode is reported turn by turn, and what reports it travels and is stored whole."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.episode_in_words import EPISODE, WORDS
from trimaran.ledger.episode_words import tell_episode
from trimaran.ledger.group_life import GroupLife
from trimaran.ledger.group_words import tell
from trimaran.ledger.records import Issued, Scored
from trimaran.run.answers import RunEpisode, RunSample, RunSamples
from trimaran.types import Completion, Faulted, Group, Message, Prompt, Score, ScoredGroup
from trimaran.wire.run_messages import (
    decode_samples,
    encode_samples,
    episode_from_tree,
    episode_to_tree,
)


def episode() -> RunEpisode:
    found = RunEpisode.of(EPISODE)
    assert found
    return found


def test_who_said_what_with_how_many_tokens_of_which_version() -> None:
    assert tuple(tell_episode(episode())) == WORDS
    assert RunEpisode.of(Completion((1,), (0.0,), "3", "stop", ())) is None


def test_it_is_the_same_over_the_wire_and_in_a_file() -> None:
    sample = RunSample("p:1", "1 + 2?", "3", "3", 0.5, {"environment": 0.5}, "", episode())
    answer = replace(sample, episode=None)
    trained = replace(answer, place=1, group=0, number=1, greedy=True, num_images=2)
    samples = RunSamples((5,), (), (sample, trained), 2, 5)
    assert decode_samples(encode_samples(samples)) == samples
    tree = episode_to_tree(episode())
    assert episode_from_tree(json.loads(json.dumps(tree))) == episode()
    assert tree["turns"][1] == {
        "turn": {
            "message": {"role": "assistant", "text": "3"},
            "num_sampled": 2,
            "finish_reason": "length",
        },
        "versions": ["0.6", "0.7"],
    }


def test_the_life_of_a_group_reports_its_episodes_in_a_line_each() -> None:
    scored = Scored(17, 1, "payload", (0.5, None))
    life = GroupLife(17, [Issued(17, 1, "p:1"), scored])
    answers = (EPISODE, Completion((1,), (0.0,), "3", "stop", ()))
    prompt = Prompt("p:1", (Message("user", "1 + 2?"),), "add", "3")
    verdicts = (Score(0.5, {"environment": 0.5}), Faulted("environment-0: it died", {}))
    life.whole = ScoredGroup(Group(17, 1, prompt, (1,), answers), verdicts)
    lines = list(tell(life))
    first = lines.index("    completion 1: reward 0.5 (environment 0.5)")
    last = lines.index("    completion 2: could not be scored: environment-0: it died")
    reported = lines[first + 1 : last]
    assert reported[0] == f"      turn 1: {WORDS[0][1]}"
    assert "      tool add: 3 no more" in reported and len(reported) == len(WORDS)
    assert life.tree()["completions"][0]["episode"] == episode_to_tree(episode())
    assert "episode" not in life.tree()["completions"][1]
