"""In the form of EasyR1's reward_function: a batch of answers."""

REWARD_NAME = "letters"
REWARD_TYPE = "batch"


def compute_score(reward_inputs, weight=1.0):
    scores = []
    for one in reward_inputs:
        letters = sum(letter.isalpha() for letter in one["response"])
        share = letters / max(1, len(one["response"]))
        scores.append({"overall": weight * share, "letters": share})
    return scores
