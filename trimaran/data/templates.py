"""What stands around a question, by the name that its project gives it.

Special tokens are none of a template here: the model's own chat template writes them.
"""

from __future__ import annotations

from dataclasses import dataclass

R1 = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it."
    " The assistant first thinks about the reasoning process in the mind and then provides the user with"
    " the answer. The reasoning process and answer are enclosed within <think> </think> and <answer>"
    " </answer> tags, respectively, i.e., <think> reasoning process here </think><answer> answer here"
    " </answer>"
)
"""The prompt of DeepSeek-R1-Zero, as MindSpeed-RL and EasyR1 have it."""
HELPFUL = "You are a helpful assistant."


@dataclass(frozen=True, slots=True)
class Template:
    """Example: Template(after=" Think first.").apply("1 + 2?") == "1 + 2? Think first." """

    before: str = ""
    after: str = ""
    system: str | None = None
    """Where neither the row nor the command gives one."""

    def apply(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"


TEMPLATES = {
    "chat": Template(),
    # MindSpeed-RL, configs/model/templates.json
    "qwen": Template(system=HELPFUL),
    "qwen_r1": Template(
        before=f"{R1}. Put your final answer within \\boxed{{}}.\n", system=HELPFUL
    ),
    "qwen_math_r1": Template(
        system="Please reason step by step, and put your final answer within \\boxed{}."
    ),
    "qwen3": Template(),
    # verl, examples/data_preprocess; EasyR1, examples/format_prompt
    "gsm8k": Template(after=' Let\'s think step by step and output the final answer after "####".'),
    "boxed": Template(
        after=" Let's think step by step and output the final answer within \\boxed{}."
    ),
    "think_boxed": Template(
        after=" You FIRST think about the reasoning process as an internal monologue and then provide"
        " the final answer. The reasoning process MUST BE enclosed within <think> </think> tags. The"
        " final answer MUST BE put in \\boxed{}."
    ),
    "r1v": Template(after=f" {R1}"),
    "dapo": Template(
        before="Solve the following math problem step by step. The last line of your response should be"
        " of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n",
        after='\n\nRemember to put your answer on its own line after "Answer:".',
    ),
}
