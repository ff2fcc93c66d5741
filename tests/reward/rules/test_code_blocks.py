"""Which part of a text is the program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.rules.code.blocks import last_code_block

PROSE = st.text(alphabet="ab .,<>/'\"\t", max_size=20)
OPENED = ["```", "```python", "``` python", "````", "```bash", "  ```py", "`x`"]
TAGGED = ["```</think>", "```text</think>", "</think>", "<think>", "<answer>```", "</think>```py"]
FENCES = st.sampled_from(OPENED + TAGGED)
REASONING = st.lists(PROSE | FENCES, max_size=12).map("\n".join)
PROGRAM = "def f(x):\n    return x"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("```py\na\n```\nand\n```Python\nb\n```", "b"),
        ("```python\na\n```\nIts output:\n```\n3\n```", "a"),
        ("```bash\nls\n```", None),
        ("```python\na", None),
        ("", None),
        ("- so:\n  ```python\n  if x:\n    y\n  ```", "if x:\n  y"),
        ("```python\ns = '```'\n```", "s = '```'"),
        # A fence that was left open before the program.
        ("<think>\n```python\ndraft\n</think>\n```python\na\n```", "a"),
        ("<think>\n```python\ndraft\n</think>\n```\na\n```", "a"),
        ("So:\n```bash\nls\nand:\n```python\na\n```", "a"),
        # Fences beside tags.
        ("<think>\n```python\ndraft\n```</think>\n```python\na\n```", "a"),
        ("<think>\n```python\ndraft\n``` </think><answer>\n```\na\n```</answer>", "a"),
        ("<answer>```py\na\n```</answer>", "a"),
        ("<think>\n```python\na\n```\n</think>\nThat is it.", "a"),
        # What a program may hold.
        ("```python\nprint('</think>')\n```\nIts output:\n```\n3\n```", "print('</think>')"),
        ("````python\ns = '\\\n```\n'\n````", "s = '\\\n```\n'"),
        (
            '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```',
            'def f():\n    """\n    ```\n    f()\n    ```\n    """',
        ),
        ("```python title=a.py\r\na\r\n```\r", "a\r"),
    ],
)
def test_the_last_whole_block_of_python_counts(text: str, source: str | None) -> None:
    assert last_code_block(text) == source


@given(REASONING, st.sampled_from(["python", "py", "Python3"]), PROSE)
def test_nothing_before_a_program_swallows_it(before: str, tag: str, after: str) -> None:
    text = f"{before}\n```{tag}\n{PROGRAM}\n```\n{after}"
    assert last_code_block(text) == PROGRAM


@given(REASONING, st.sampled_from(["", "python"]), st.sampled_from(["", "\n", "<answer>"]))
def test_no_reasoning_swallows_a_program_behind_it(before: str, tag: str, between: str) -> None:
    text = f"<think>{before}</think>{between}```{tag}\n{PROGRAM}\n```"
    assert last_code_block(text) == PROGRAM


@given(st.lists(st.sampled_from(["python", "py", ""]), min_size=1, max_size=6))
def test_of_whole_blocks_the_last_counts(tags: list[str]) -> None:
    blocks = [f"```{tag}\n{number}\n```" for number, tag in enumerate(tags)]
    named = [number for number, tag in enumerate(tags) if tag] or [len(tags) - 1]
    assert last_code_block("\nand\n".join(blocks)) == str(named[-1])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["```", "``` ", "<think>", "```a", "`", " ", "</think>", "```\t"])
def test_time_is_linear_whatever_repeats(piece: str) -> None:
    """A minute is some hundred times what it takes; in quadratic time it would take hours."""
    last_code_block(piece * 500_000 + "`")
    last_code_block((piece + "\n") * 500_000)
