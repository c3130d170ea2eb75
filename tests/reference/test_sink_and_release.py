"""One operation that releases on Host for a sink, and then releases another: the model tells both, in order."""

from __future__ import annotations

from typing import Any

from kvcrucible.fuzz.reproduction import run_case

SETTING: dict[str, Any] = {
    "capacity_pages": 12,
    "page_size": 64,
    "max_context": 192,
    "max_concurrency": 2,
    "profile": "INT8-G64",
    "host_bytes": 135168,
    "policy": "cost-aware",
    "lookahead": 1,
}


def submit(*runs: list[int], max_new: int = 0, image: int = 0) -> list[Any]:
    spans = [{"start": 0, "length": image, "token_type": "image", "media": "a"}] if image else []
    return ["Submit", {"prompt": list(runs), "max_new": max_new, "spans": spans}]


def begun(sequence: int, unit: int, count: int) -> list[list[Any]]:
    """Admit the head, which is ``sequence``, and write ``count`` tokens of it."""
    work = [["Prefill", {"sequence": sequence, "count": count}]]
    return [["Schedule", {}], ["BeginUnit", {"work": work}], ["EndUnit", {"unit": unit}]]


def finish(sequence: int) -> list[Any]:
    return ["Finish", {"sequence": sequence}]


def test_a_release_for_host_room_does_not_change_who_yields_next() -> None:
    steps = [
        *[submit([0, 600, 70], [0, 100, 96], image=70), *begun(0, 0, 166), ["Checkpoint", {"sequence": 0}]],
        *[submit([0, 60, 65]), *begun(1, 1, 65), finish(1)],
        *[submit([1, 60, 65]), *begun(2, 2, 65), finish(2)],
        *[submit([2, 60, 65]), *begun(3, 3, 65), finish(3)],
        *[submit([20, 700, 192]), *begun(4, 4, 1), finish(4)],
        *[submit([0, 600, 2], [0, 100, 1], image=2), *begun(5, 5, 1)],
        submit([0, 600, 2], [0, 100, 1], image=2),
        submit([0, 600, 2], [0, 100, 160], image=2),
        submit([0, 600, 2], [0, 100, 160], image=2),
        finish(0),
        ["Demote", {"continuation": 0}],
        ["Demote", {"continuation": 4}],
        ["Progress", {}],
        finish(5),
        ["Fork", {"source": 5, "position": 3, "max_new": 64}],
        ["Fork", {"source": 9, "position": 3, "max_new": 0}],
        finish(10),
        finish(9),
        ["Schedule", {}],
    ]
    run_case(SETTING, steps)
