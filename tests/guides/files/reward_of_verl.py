"""In the form of verl's custom_reward_function: one answer at a time."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    letters = sum(letter.isalpha() for letter in solution_str)
    return {"score": letters / max(1, len(solution_str)), "acc": ground_truth in solution_str}
