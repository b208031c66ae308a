"""The manifest is consistent: every row has a test or a reason, every mark a row."""

from __future__ import annotations

from tests.conformance.manifest import proofs, rows


def test_every_row_is_proved_or_deferred() -> None:
    proved = proofs()
    open_rows = [row.id for row in rows().values() if row.id not in proved and not row.deferred]
    assert open_rows == []


def test_no_row_is_both_proved_and_deferred() -> None:
    proved = proofs()
    assert [row.id for row in rows().values() if row.deferred and row.id in proved] == []


def test_every_mark_names_a_row() -> None:
    known = rows()
    assert sorted(set(proofs()) - set(known)) == []


def test_every_row_has_a_rule_and_source() -> None:
    assert len(rows()) > 0
    assert all(row.rule.endswith(".") and row.source for row in rows().values())
