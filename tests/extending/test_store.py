"""The recipe of a store shows the one that `tests/trimaran/store/test_contract.py` runs."""

from tests.extending.recipes import RECIPES, ROOT


def test_the_recipe_shows_what_the_store_does() -> None:
    ((path, shown),) = RECIPES["A store"].parts.items()

    def words(text: str) -> str:
        """Without line breaks, indents and trailing commas, which formatting moves."""
        return "".join(text.split())

    whole = words((ROOT / path).read_text(encoding="utf-8"))
    for method in shown.strip().split("\n\n"):
        assert words(method) in whole
