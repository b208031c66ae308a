"""Notices about runs: the JSON text that processes of two versions exchange."""

from __future__ import annotations

import json

from antiphon.store.common.claimable_runs import Notice
from antiphon.store.postgres.notifications.listener import encode_notice


def test_notice_keeps_the_json_keys_of_the_previous_version() -> None:
    notice = Notice(
        sender="process",
        ended_runs=(("tenant", "resp_1"),),
        lost_runs=(("resp_2", 3),),
        queued_runs=("resp_4",),
        claimed_runs=("resp_5",),
        has_released_runs=True,
    )
    assert json.loads(encode_notice(notice)) == {
        "by": "process",
        "ended": [["tenant", "resp_1"]],
        "lost": [["resp_2", 3]],
        "queued": ["resp_4"],
        "claimed": ["resp_5"],
        "released": True,
    }
