from __future__ import annotations

from agent_env.tables import align


def test_the_first_column_is_to_the_left_and_the_others_to_the_right() -> None:
    assert align([["name", "n"], ["a", "10"]]) == "name   n\na     10"


def test_columns_can_be_chosen_and_lines_have_no_blanks_at_the_end() -> None:
    assert align([["a", "1", "note"], ["bb", "20", ""]], left=(0, 2)) == "a    1  note\nbb  20"
